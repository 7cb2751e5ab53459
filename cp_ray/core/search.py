"""Algorithm 1, context index search (paper 4.2), and the exact search that serving uses.

Both return candidates: prefixes of known contexts whose every block lies in the request's
context, so that some order of it begins with them. One traversal serves all replicas, because
nodes carry the bit set of their holders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cp_ray.core.distance import distance
from cp_ray.core.node import ContextNode
from cp_ray.core.types import BlockId, Context

NODE_BUDGET = 2000
"""Nodes one exact search may visit: bounds its worst case (p99 was 4.7 ms without)."""


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
    """Every prefix of a known context that the request can begin with, deepest per path.

    Depth first with a node budget. Since a context is a set we may order, the best reusable
    prefix is the one worth most tokens among these. remembered: with orders nobody holds now.
    """
    found: list[Candidate] = []
    stack: list[tuple[ContextNode, Candidate | None]] = [(root, None)]
    while stack and budget > 0:
        node, above = stack.pop()
        children = node.children
        # `tokens` has exactly the context's blocks as keys: look up from the smaller side.
        if len(children) <= len(context):
            matching = [child for first, child in children.items() if first in tokens]
        else:
            matching = [children[block] for block in context if block in children]
        depth = len(node.context)
        for child in matching:
            if not child.holders and not remembered:
                continue
            budget -= 1
            prefix = child.context
            end, gained = depth, 0
            limit = len(prefix)
            while end < limit and prefix[end] in tokens:
                gained += tokens[prefix[end]]
                end += 1
            familiar = gained * min(child.frequency, MAX_FREQUENCY)
            if above is not None:
                gained += above.tokens
                familiar += above.familiar
            here = Candidate(child, end, gained, child.holders, familiar, above)
            found.append(here)
            if end == limit and child.children:
                stack.append((child, here))
    return found


class Path(msgspec.Struct, frozen=True):
    """A prefix to follow, and how many of its tokens the replica holds."""

    prefix: Context
    held_tokens: int


def best_path(candidates: Sequence[Candidate], bit: int, trust: float) -> Path:
    """The prefix to follow on the replica of number `bit`: held tokens first, then familiar ones.

    trust: held tokens that one unheld token is worth per request that passed there. Beyond the
    held part an order known elsewhere costs nothing to follow and makes the next request of its
    kind a hit here as well, so on a tie the longer prefix is taken.
    """
    best: tuple[float, int] = (0.0, 0)
    path = Path((), 0)
    for candidate in candidates:
        held: Candidate | None = candidate
        while held is not None and not held.holders >> bit & 1:
            held = held.above
        tokens, familiar = (held.tokens, held.familiar) if held is not None else (0, 0)
        value = (tokens + trust * (candidate.familiar - familiar), candidate.tokens)
        if value > best:
            best, path = value, Path(candidate.prefix, tokens)
    return path


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
    for candidate in sorted(candidates, key=lambda found: found.tokens, reverse=True):
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
