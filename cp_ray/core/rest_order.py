"""The order of the blocks behind the known prefix: as ranked, or popular first, by the traffic.

Popular first: again and again the block that most of the last requests had together with all
blocks before it. It builds prefixes that later requests share (multihoprag at 400,000 tokens:
0.466 against 0.415 as ranked), but where neighbours in time resemble each other in their
retrieval order it destroys them (qasper: 0.21 against 0.285). So each request is also a test:
which of the two orders of its most similar predecessor would have led it further?
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from cp_ray.core.limits import Limits
from cp_ray.core.types import BlockId, Context
from cp_ray.errors import InvariantError

MEMORY = 2048
"""Requests remembered. 1,024 cost half a point on fairytaleqa_100_bm25, 4,096 won 0.3 there."""
MIN_SUPPORT = 2
"""Requests that must have had a block behind the same prefix for popularity to place it."""
HANDICAP = 0.9
"""Popular first needs this share of what as-ranked scores: the test asks one predecessor, but a
popular prefix serves many. The ratio is 0.95 or more on four traces and below 0.8 on two."""
TRUST = 0.01
"""Held tokens given up per token of an evicted order and request that passed along it."""
LEARN, TEST_EVERY = 256, 4
"""The first requests are all tests, then one in four (a test costs a tenth of a plan)."""
DECAY = 0.999
"""Weight of a test after one more: about the last thousand tests decide."""


class _Past(msgspec.Struct, frozen=True, gc=False):
    """One request: as planned, blocks of it that were prefix, and the rest by the other rule.

    popular: whether the rest was planned popular first.
    """

    planned: Context
    prefix: int
    other: Context
    popular: bool


class RestOrder:
    """Owner of what the last MEMORY requests had, and of the contest of the two rules."""

    def __init__(self, memory: int = MEMORY, limits: Limits | None = None) -> None:
        self._memory = memory
        self._limits = limits or Limits()
        self._count = 0
        self._ring: list[_Past] = []
        self._had: dict[BlockId, int] = {}
        self._led_ranked = 0.0
        self._led_popular = 0.0

    @property
    def trust(self) -> float:
        """Held tokens that a familiar but evicted order is worth following for (`best_path`)."""
        return TRUST if self.popular else 0.0

    @property
    def popular(self) -> bool:
        """Whether popular first leads."""
        return self._led_popular > HANDICAP * self._led_ranked

    def arrange(self, context: Context, prefix: Context, tokens: Mapping[BlockId, int]) -> Context:
        """The context with `prefix` in front and the rest by the leading rule; remembers it.

        prefix: distinct blocks of the context, in an order the limits allow. tokens: of each block.
        Ids are kept as they are: interned ones save memory.
        """
        taken = set(prefix)
        ranked = tuple([block for block in context if block not in taken])
        popular = self._popular_first(prefix, ranked, tokens)
        if self._limits.bind:
            popular = self._limits.hold(context, prefix + popular)[len(prefix) :]
        if self._count < LEARN or self._count % TEST_EVERY == 0:
            self._test(context, tokens)
        led = self.popular
        planned = prefix + (popular if led else ranked)
        self._remember(_Past(planned, len(prefix), ranked if led else popular, led))
        return planned

    def fill(self) -> tuple[int, int]:
        """Requests remembered, and the most there can be."""
        return len(self._ring), self._memory

    def _popular_first(
        self, prefix: Context, rest: Context, tokens: Mapping[BlockId, int]
    ) -> Context:
        """Greedy: next is the block of most requests x root of tokens.

        Only requests count that had it and all blocks before it. Plain tokens in place of
        their root give up too many requests for a large block (multihoprag 0.329 against 0.335
        at 100,000 tokens); no tokens at all, 0.324.
        """
        had = self._had
        together = -1
        for block in prefix:
            together &= had.get(block, 0)
        left = []
        most, best, behind = 0.0, None, 0
        for block in rest:
            requests = had.get(block, 0) & together
            support = requests.bit_count()
            if support >= MIN_SUPPORT:
                root = math.sqrt(tokens[block])
                left.append((block, requests, root))
                if support * root > most:
                    most, best, behind = support * root, block, requests
        placed = []
        while best is not None:
            placed.append(best)
            chosen, together, most, best = best, behind, 0.0, None
            narrowed = []
            for block, requests, root in left:
                both = requests & together
                support = both.bit_count()
                if support >= MIN_SUPPORT and block is not chosen:
                    narrowed.append((block, both, root))
                    if support * root > most:
                        most, best, behind = support * root, block, both
            left = narrowed
        if not placed:
            return rest
        done = set(placed)
        return (*placed, *[block for block in rest if block not in done])

    def _test(self, context: Context, tokens: Mapping[BlockId, int]) -> None:
        """Credit each rule with the run by which its order of the likest request would lead."""
        self._led_ranked *= DECAY
        self._led_popular *= DECAY
        votes: dict[int, int] = {}
        likest, most = -1, 0
        newer = (1 << self._count % self._memory) - 1
        for block in context:
            requests = self._had.get(block, 0)
            if requests:
                # The latest: the highest slot this round, else the highest of the last round.
                slot = (requests & newer or requests).bit_length() - 1
                votes[slot] = count = votes.get(slot, 0) + 1
                if count > most:
                    likest, most = slot, count
        if likest < 0:
            return
        past = self._ring[likest]
        rest = past.planned[past.prefix :]
        if rest == past.other:
            return
        taken = _run(rest, tokens)
        other = _run(past.other, tokens)
        self._led_popular += taken if past.popular else other
        self._led_ranked += other if past.popular else taken

    def _remember(self, past: _Past) -> None:
        slot = self._count % self._memory
        bit = 1 << slot
        had = self._had
        if self._count < self._memory:
            self._ring.append(past)
        else:
            for block in self._ring[slot].planned:
                left = had[block] ^ bit
                if left:
                    had[block] = left
                else:
                    del had[block]
            self._ring[slot] = past
        for block in past.planned:
            had[block] = had.get(block, 0) | bit
        self._count += 1

    def check(self) -> None:
        """Raise InvariantError unless the bit sets are those of the remembered requests."""
        had: dict[BlockId, int] = {}
        for slot, past in enumerate(self._ring):
            for block in past.planned:
                had[block] = had.get(block, 0) | 1 << slot
        if had != self._had:
            raise InvariantError("rest order: bit sets and remembered requests disagree")


def _run(order: Context, tokens: Mapping[BlockId, int]) -> int:
    """Tokens of the leading blocks that are keys of `tokens`."""
    total = 0
    for block in order:
        if block not in tokens:
            break
        total += tokens[block]
    return total
