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

from cp_ray.core.types import BlockId, Context
from cp_ray.errors import InvariantError

MEMORY = 2048
"""Requests remembered. 1,024 cost half a point on fairytaleqa_100_bm25, 4,096 won 0.3 there."""
MIN_SUPPORT = 2
"""Requests that must have had a block behind the same prefix for popularity to place it."""
HANDICAP = 0.9
"""Popular first needs this share of what as-ranked scores: the test asks one predecessor, but a
popular prefix serves many. The ratio is 0.95 or more on four traces and below 0.8 on two."""
DECAY = 0.999
"""Weight of a test after one more request: about the last thousand decide."""


class RestOrder:
    """Owner of what the last MEMORY requests had, and of the contest of the two rules."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._memory = memory
        self._count = 0
        self._ring: list[tuple[Context, Context, Context]] = []
        self._had: dict[BlockId, int] = {}
        self._latest: dict[BlockId, int] = {}
        self._led_ranked = 0.0
        self._led_popular = 0.0

    @property
    def popular(self) -> bool:
        """Whether popular first leads."""
        return self._led_popular > HANDICAP * self._led_ranked

    def arrange(self, context: Context, prefix: Context, tokens: Mapping[BlockId, int]) -> Context:
        """The context with `prefix` in front and the rest by the leading rule; remembers it.

        prefix: distinct blocks of the context. tokens: of each block.
        """
        taken = set(prefix)
        ranked = tuple([block for block in context if block not in taken])
        popular = self._popular_first(prefix, ranked, tokens)
        self._test(context, tokens)
        self._remember(context, ranked, popular)
        return prefix + (popular if self.popular else ranked)

    def _popular_first(
        self, prefix: Context, rest: Context, tokens: Mapping[BlockId, int]
    ) -> Context:
        """Greedy: next is the block of most requests that had it and all before it, times the root
        of its tokens: large blocks first pays, but the whole size gives up too many requests.
        """
        had = self._had
        together = -1
        for block in prefix:
            together &= had.get(block, 0)
        left = []
        for block in rest:
            requests = had.get(block, 0) & together
            if requests.bit_count() >= MIN_SUPPORT:
                left.append((block, requests, math.sqrt(tokens[block])))
        placed = []
        while left:
            best, chosen, together = -1.0, left[0][0], 0
            for block, requests, root in left:
                value = requests.bit_count() * root
                if value > best:
                    best, chosen, together = value, block, requests
            placed.append(chosen)
            narrowed = []
            for block, requests, root in left:
                if block != chosen:
                    both = requests & together
                    if both.bit_count() >= MIN_SUPPORT:
                        narrowed.append((block, both, root))
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
        for block in context:
            number = self._latest.get(block, -1)
            if number >= 0:
                votes[number] = count = votes.get(number, 0) + 1
                if count > most:
                    likest, most = number, count
        if likest < 0:
            return
        _, ranked, popular = self._ring[likest % self._memory]
        if ranked != popular:
            self._led_ranked += _run(ranked, tokens)
            self._led_popular += _run(popular, tokens)

    def _remember(self, context: Context, ranked: Context, popular: Context) -> None:
        slot = self._count % self._memory
        bit = 1 << slot
        entry = (context, ranked, popular)
        if self._count < self._memory:
            self._ring.append(entry)
        else:
            for block in self._ring[slot][0]:
                self._had[block] ^= bit
                if not self._had[block]:
                    del self._had[block], self._latest[block]
            self._ring[slot] = entry
        for block in context:
            self._had[block] = self._had.get(block, 0) | bit
            self._latest[block] = self._count
        self._count += 1

    def check(self) -> None:
        """Raise InvariantError unless the bit sets are those of the remembered requests."""
        had: dict[BlockId, int] = {}
        for slot, (context, _, _) in enumerate(self._ring):
            for block in context:
                had[block] = had.get(block, 0) | 1 << slot
        if had != self._had or set(had) != set(self._latest):
            raise InvariantError("rest order: bit sets and remembered requests disagree")
        if any(self._count - at > self._memory for at in self._latest.values()):
            raise InvariantError("rest order: a block is remembered past the memory")


def _run(order: Context, tokens: Mapping[BlockId, int]) -> int:
    """Tokens of the leading blocks that are keys of `tokens`."""
    total = 0
    for block in order:
        if block not in tokens:
            break
        total += tokens[block]
    return total
