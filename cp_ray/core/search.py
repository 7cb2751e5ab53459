"""Algorithm 1, context index search (paper 4.2), and the exact search that serving uses.

Both return candidates: prefixes of known contexts whose every block lies in the request's
context, so that some order of it begins with them. One traversal serves all replicas, because
nodes carry the bit set of their holders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from cp_ray.core.distance import distance
from cp_ray.core.node import ContextNode, mark
from cp_ray.core.types import BlockId, Context

NODE_BUDGET: Final = 56
"""Nodes one exact search may look at, and at most one node's matching children more: O(budget +
|C|) edges, whatever is stored (p99 was 4.7 ms without). Busy branches are looked at first, so the
traces reuse at most 0.07 points less than at 200 (benchmarks/LOG.md)."""


MAX_FREQUENCY: Final = 50
"""Passes of a node that count; beyond, it is popular enough."""


@final
class Candidate:
    """The first `length` blocks of `node.context`, worth `tokens`, held by bits `holders`.

    familiar: tokens times the requests that passed there. above: the candidate it extends. Never
    changed; a plain class, because dozens are made and read per search and compiled code is
    several times faster at that than with any other kind of value.
    """

    __slots__ = ("above", "familiar", "holders", "length", "node", "tokens")

    def __init__(
        self,
        node: ContextNode,
        length: int,
        tokens: int,
        holders: int,
        familiar: int = 0,
        *,
        above: Candidate | None = None,
    ) -> None:
        self.node = node
        self.length = length
        self.tokens = tokens
        self.holders = holders
        self.familiar = familiar
        self.above = above

    @property
    def prefix(self) -> Context:
        """The blocks, in the order a holder has them."""
        return self.node.context[: self.length]


def greedy_search(
    root: ContextNode, context: Context, tokens: Mapping[BlockId, int], alpha: float
) -> list[Candidate]:
    """Algorithm 1 with the repairs of docs/decisions/0001; candidates along its path.

    The paper's index has no node that nobody holds: orders remembered without a holder are passed
    over. Only a child whose next block lies in the context can be descended into: a shared block
    that does not lead the cached sequence is no prefix. Eq. 1 chooses among such children; on a
    tie the child whose whole content lies in the context, then the lowest slot.
    """
    members = set(context)
    found: list[Candidate] = []
    node, gained = root, 0
    path: Context = ()
    while True:
        overlapping = [
            child for first, child in node.children.items() if first in members and child.holders
        ]
        if not overlapping:
            return found

        def rank(child: ContextNode, above: Context = path) -> tuple[float, bool, int]:
            whole = (*above, *child.edge)
            strange = not members.issuperset(child.edge)
            return round(distance(context, whole, alpha), 9), strange, child.slot

        best = min(overlapping, key=rank)
        run = _leading_run(best.edge, members)
        gained += sum(tokens[block] for block in best.edge[:run])
        found.append(Candidate(best, node.depth + run, gained, best.holders))
        if run < len(best.edge):
            return found
        node, path = best, (*path, *best.edge)


def exact_search(
    root: ContextNode,
    context: Context,
    tokens: dict[BlockId, int],
    budget: int = NODE_BUDGET,
    remembered: bool = False,
) -> list[Candidate]:
    """Prefixes of known contexts that the request can begin with; the best of every holder.

    Depth first with a node budget. Since a context is a set we may order, the best reusable
    prefix is the one worth most tokens among these. remembered: with orders nobody holds now.
    """
    found: list[Candidate] = []
    stack = [Candidate(root, 0, 0, 0)]
    few = len(context) // 2
    top, top_holders = 0, 0
    marks = 0
    for block in context:
        marks |= mark(block)
    while stack and budget > 0:
        opened = stack.pop()
        node = opened.node
        above = opened if opened.length else None
        children = node.children
        # `tokens` has exactly the context's blocks as keys: look up from the side that is cheaper.
        if len(children) <= few:
            matching = [children[first] for first in children if first in tokens]
        else:
            matching = [child for first in context if (child := children.get(first)) is not None]
        bottom = len(stack)
        # Read all edges at once: what is not in the processor's cache comes side by side.
        edges = [child.edge for child in matching]
        for at, child in enumerate(matching):
            budget -= 1
            holders = child.holders
            if not holders and not remembered:
                continue
            gained = opened.tokens
            length = node.depth
            for block in edges[at]:
                more = tokens.get(block)
                if more is None:
                    break
                gained += more
                length += 1
            ends = length < child.depth or not child.marks
            # Whoever holds this end of a path holds a better one already seen.
            if ends and gained <= top and holders and holders | top_holders == top_holders:
                continue
            passed = child.frequency
            familiar = opened.familiar + (gained - opened.tokens) * (
                passed if passed < MAX_FREQUENCY else MAX_FREQUENCY
            )
            here = Candidate(child, length, gained, holders, familiar, above=above)
            found.append(here)
            if gained > top:
                top, top_holders = gained, holders
            if ends or not child.marks & marks:  # no child of it can match
                continue
            place = len(stack)
            while place > bottom and stack[place - 1].node.frequency > passed:
                place -= 1
            stack.insert(place, here)
    return found


def fixed_search(
    root: ContextNode, context: Context, tokens: Mapping[BlockId, int]
) -> list[Candidate]:
    """Prefixes of the context as it stands: for requests whose order may not change."""
    found: list[Candidate] = []
    node, gained, depth = root, 0, 0
    while depth < len(context):
        child = node.children.get(context[depth])
        if child is None:
            return found
        for block in child.edge:
            if depth == len(context) or context[depth] != block:
                break
            gained += tokens[block]
            depth += 1
        above = found[-1] if found else None
        found.append(Candidate(child, depth, gained, child.holders, above=above))
        if depth < child.depth:
            return found
        node = child
    return found


def best_per_holder(candidates: list[Candidate], wanted: int) -> dict[int, Candidate]:
    """The candidate worth most tokens for each of the bits `wanted` that holds any, by that bit.

    Of candidates worth the same the one found first.
    """
    best: dict[int, Candidate] = {}
    left = wanted
    while left:
        # Not sorted once: most often few candidates serve all, or one bit is wanted.
        top: Candidate | None = None
        most = -1
        for candidate in candidates:
            if candidate.tokens > most and candidate.holders & left:
                top, most = candidate, candidate.tokens
        if top is None:
            return best
        fresh = top.holders & left
        left ^= fresh
        while fresh:
            bit = fresh & -fresh
            best[bit] = top
            fresh ^= bit
    return best


def _leading_run(edge: Context, members: set[BlockId]) -> int:
    run = 0
    while run < len(edge) and edge[run] in members:
        run += 1
    return run
