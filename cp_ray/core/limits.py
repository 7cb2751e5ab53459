"""How far ordering may move a block: what an operator allows, and the search that obeys it.

A client ranks blocks best first, and the rank is always told to the model (`annotation.py`); these
limits are for those who do not want to rely on that. A prefix of an allowed order is allowed, and
an allowed prefix followed by the other blocks in rank order is an allowed order (then every other
block moves back by at most what the first of them does), so a search may stop where a limit is
met and look at nothing beyond.
"""

from __future__ import annotations

import msgspec

from cp_ray.core.node import ContextNode
from cp_ray.core.search import MAX_FREQUENCY, NODE_BUDGET, Candidate, exact_search
from cp_ray.core.types import BlockId, Context
from cp_ray.errors import ConfigError


class Limits(msgspec.Struct, frozen=True):
    """keep_top: so many blocks of best rank stay first, in their order.

    max_displacement: places a block may stand before or behind its rank; None = any number.
    """

    keep_top: int = 0
    max_displacement: int | None = None

    def __post_init__(self) -> None:
        for name in ("keep_top", "max_displacement"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name}: {value} is less than 0", param=name)

    @property
    def bind(self) -> bool:
        """Whether anything is limited at all."""
        return self.keep_top > 0 or self.max_displacement is not None

    def allow(self, rank: int, place: int, placed: int) -> bool:
        """Whether the block of `rank` may stand at `place` behind the ranks in bit set `placed`.

        placed: exactly `place` ranks, in an allowed order.
        """
        if place < self.keep_top:
            return rank == place
        if self.max_displacement is None:
            return True
        waiting = lowest_missing(placed | 1 << rank)
        return rank - place <= self.max_displacement and place + 1 - waiting <= (
            self.max_displacement
        )

    def hold(self, context: Context, wanted: Context) -> Context:
        """The allowed order nearest to `wanted`: everywhere the first of it that may stand there.

        wanted: the blocks of `context`, which is ranked, in any order.
        """
        if not self.bind:
            return wanted
        rank = {block: place for place, block in enumerate(context)}
        left = list(wanted)
        placed = 0
        order = []
        for place in range(len(wanted)):
            block = next(block for block in left if self.allow(rank[block], place, placed))
            left.remove(block)
            order.append(block)
            placed |= 1 << rank[block]
        return tuple(order)

    def leading(self, context: Context, wanted: Context) -> Context:
        """The leading blocks of `wanted` that the limits allow. context: ranked."""
        if not self.bind:
            return wanted
        rank = {block: place for place, block in enumerate(context)}
        placed = 0
        for place, block in enumerate(wanted):
            if not self.allow(rank[block], place, placed):
                return wanted[:place]
            placed |= 1 << rank[block]
        return wanted


def lowest_missing(placed: int) -> int:
    """The lowest number that is not in a bit set."""
    return (~placed & placed + 1).bit_length() - 1


def limited_search(
    root: ContextNode,
    context: Context,
    tokens: dict[BlockId, int],
    limits: Limits,
    remembered: bool = False,
) -> list[Candidate]:
    """As `exact_search`, of prefixes that the limits allow; the same bound on what it looks at."""
    if not limits.bind:
        return exact_search(root, context, tokens, remembered=remembered)
    budget = NODE_BUDGET
    rank = {block: place for place, block in enumerate(context)}
    found: list[Candidate] = []
    stack: list[tuple[ContextNode, int, Candidate | None]] = [(root, 0, None)]
    while stack and budget > 0:
        node, placed_above, above = stack.pop()
        for first in context:
            child = node.children.get(first)
            if child is None:
                continue
            budget -= 1
            if not child.holders and not remembered:
                continue
            placed, place, gained = placed_above, node.depth, 0
            for block in child.edge:
                if block not in rank or not limits.allow(rank[block], place, placed):
                    break
                placed |= 1 << rank[block]
                place += 1
                gained += tokens[block]
            if place == node.depth:
                continue
            familiar = gained * min(child.frequency, MAX_FREQUENCY)
            if above is not None:
                gained += above.tokens
                familiar += above.familiar
            here = Candidate(child, place, gained, child.holders, familiar, above=above)
            found.append(here)
            if place == child.depth and child.children:
                stack.append((child, placed, here))
    return found
