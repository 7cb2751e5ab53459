"""Algorithm 1, context index search (paper 4.2), and the exact search that serving uses.

Both return candidates: prefixes of known contexts whose every block lies in the request's
context, so that some order of it begins with them. One traversal serves all replicas, because
nodes carry the bit set of their holders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import msgspec

from cp_ray.core.distance import distance
from cp_ray.core.node import ContextNode
from cp_ray.core.types import BlockId, Context

NODE_BUDGET = 200
"""Nodes one exact search may visit: bounds its worst case (p99 was 4.7 ms without).

No reuse was lost on any trace at 160, 0.0 to 0.2 points at 80 (benchmarks/LOG.md)."""


_BY_TOKENS = attrgetter("tokens")
MAX_FREQUENCY = 50
"""Passes of a node that count; beyond, it is popular enough."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """The first `length` blocks of `node.context`, worth `tokens`, held by bits `holders`.

    familiar: tokens times the requests that passed there. above: the candidate it extends.
    """

    node: ContextNode
    length: int
    tokens: int
    holders: int
    familiar: int = 0
    above: Candidate | None = None

    @property
    def prefix(self) -> Context:
        """The blocks, in the order a holder has them."""
        return self.node.context[: self.length]


def greedy_search(
    root: ContextNode, context: Context, tokens: Mapping[BlockId, int], alpha: float
) -> list[Candidate]:
    """Algorithm 1 with the repairs of docs/decisions/0001; candidates along its path.

    Only a child whose next block lies in the context can be descended into: a shared block that
    does not lead the cached sequence is no prefix. Eq. 1 chooses among such children; on a tie
    the child whose whole content lies in the context, then the lowest slot.
    """
    members = set(context)
    found: list[Candidate] = []
    node, gained = root, 0
    while True:
        overlapping = [child for first, child in node.children.items() if first in members]
        if not overlapping:
            return found

        def rank(child: ContextNode) -> tuple[float, bool, int]:
            whole = members.issuperset(child.context)
            return round(distance(context, child.context, alpha), 9), not whole, child.slot

        best = min(overlapping, key=rank)
        run = _leading_run(best.edge(), members)
        gained += sum(tokens[block] for block in best.edge()[:run])
        length = len(node.context) + run
        found.append(Candidate(best, length, gained, best.holders))
        if length < len(best.context):
            return found
        node = best


def exact_search(
    root: ContextNode,
    context: Context,
    tokens: Mapping[BlockId, int],
    budget: int = NODE_BUDGET,
    remembered: bool = False,
) -> list[Candidate]:
    """Prefixes of known contexts that the request can begin with; the best of every holder.

    Depth first with a node budget. Since a context is a set we may order, the best reusable
    prefix is the one worth most tokens among these. remembered: with orders nobody holds now.
    """
    found: list[Candidate] = []
    stack: list[tuple[ContextNode, Candidate | None]] = [(root, None)]
    size = tokens.get
    top, top_holders = 0, 0
    while stack and budget > 0:
        node, above = stack.pop()
        children = node.children
        # `tokens` has exactly the context's blocks as keys: look up from the smaller side.
        if len(children) <= len(context):
            matching = [child for first, child in children.items() if first in tokens]
        else:
            child_of = children.get
            matching = [child for block in context if (child := child_of(block)) is not None]
        budget -= len(matching)
        depth = len(node.context)
        for child in matching:
            if not child.holders and not remembered:
                continue
            prefix = child.context
            limit = len(prefix)
            gained = tokens[prefix[depth]]
            end = depth + 1
            while end < limit:
                more = size(prefix[end])
                if more is None:
                    break
                gained += more
                end += 1
            own = gained
            if above is not None:
                gained += above.tokens
            holders = child.holders
            ends = end < limit or not child.children
            # Whoever holds this end of a path holds a better one already seen.
            if ends and gained <= top and holders and holders | top_holders == top_holders:
                continue
            familiar = own * min(child.frequency, MAX_FREQUENCY)
            if above is not None:
                familiar += above.familiar
            here = Candidate(child, end, gained, holders, familiar, above)
            found.append(here)
            if gained > top:
                top, top_holders = gained, holders
            if not ends:
                stack.append((child, here))
    return found


def fixed_search(
    root: ContextNode, context: Context, tokens: Mapping[BlockId, int]
) -> list[Candidate]:
    """Prefixes of the context as it stands: for requests whose order may not change."""
    found: list[Candidate] = []
    node, gained = root, 0
    while len(node.context) < len(context):
        depth = len(node.context)
        child = node.children.get(context[depth])
        if child is None:
            return found
        end = depth
        limit = min(len(child.context), len(context))
        while end < limit and child.context[end] == context[end]:
            gained += tokens[context[end]]
            end += 1
        found.append(Candidate(child, end, gained, child.holders))
        if end < len(child.context):
            return found
        node = child
    return found


def best_per_holder(candidates: Sequence[Candidate], wanted: int) -> dict[int, Candidate]:
    """The candidate worth most tokens for each bit of `wanted` that holds any."""
    best: dict[int, Candidate] = {}
    left = wanted
    for candidate in sorted(candidates, key=_BY_TOKENS, reverse=True):
        fresh = candidate.holders & left
        left &= ~fresh
        while fresh:
            bit = fresh & -fresh
            best[bit.bit_length() - 1] = candidate
            fresh ^= bit
        if not left:
            break
    return best


def _leading_run(edge: Context, members: set[BlockId]) -> int:
    run = 0
    while run < len(edge) and edge[run] in members:
        run += 1
    return run
