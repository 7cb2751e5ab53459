"""The order of the blocks behind the known prefix: as ranked, or popular first, by the traffic.

Popular first: again and again the block that most of the last requests had together with all
blocks before it. It builds prefixes that later requests share (multihoprag at 400,000 tokens:
0.466 against 0.415 as ranked), but where neighbours in time resemble each other in their
retrieval order it destroys them (qasper: 0.21 against 0.285). So each request is also a test:
which of the two orders of its most similar predecessor would have led it further?
"""

from __future__ import annotations

import math
from array import array
from typing import Final

from cp_ray.core.limits import Limits
from cp_ray.core.types import BlockId, Context
from cp_ray.errors import InvariantError

MEMORY: Final = 2048
"""Requests remembered. 1,024 cost half a point on fairytaleqa_100_bm25, 4,096 won 0.3 there."""
MIN_SUPPORT: Final = 2
"""Requests that must have had a block behind the same prefix for popularity to place it."""
HANDICAP: Final = 0.9
"""Popular first needs this share of what as-ranked scores: the test asks one predecessor, but a
popular prefix serves many. The ratio is 0.95 or more on four traces and below 0.8 on two."""
TRUST: Final = 0.01
"""Held tokens given up per token of an evicted order and request that passed along it."""
LEARN: Final = 256
TEST_EVERY: Final = 4
"""The first requests are all tests, then one in four (a test costs a tenth of a plan)."""
DECAY: Final = 0.999
"""Weight of a test after one more: about the last thousand tests decide."""


class RestOrder:
    """Owner of what the last MEMORY requests had, and of the contest of the two rules.

    Two rings of the same length: each request as planned, and how the other rule would have had
    its rest (`_packed`).
    """

    def __init__(self, memory: int = MEMORY, limits: Limits | None = None) -> None:
        self._memory = memory
        self._limits = limits or Limits()
        self._count = 0
        self._planned: list[Context] = []
        self._others: list[bytes] = []
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

    def arrange(self, context: Context, prefix: Context, tokens: dict[BlockId, int]) -> Context:
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
        rest, other = (popular, ranked) if led else (ranked, popular)
        planned = prefix + rest
        self._remember(planned, _packed(planned, other, led))
        return planned

    def fill(self) -> tuple[int, int]:
        """Requests remembered, and the most there can be."""
        return len(self._planned), self._memory

    def _popular_first(self, prefix: Context, rest: Context, tokens: dict[BlockId, int]) -> Context:
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

    def _test(self, context: Context, tokens: dict[BlockId, int]) -> None:
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
        packed = self._others[likest]
        if not packed:
            return
        rest, other, was_popular = _unpacked(self._planned[likest], packed)
        taken, missed = _run(rest, tokens), _run(other, tokens)
        self._led_popular += taken if was_popular else missed
        self._led_ranked += missed if was_popular else taken

    def _remember(self, planned: Context, other: bytes) -> None:
        slot = self._count % self._memory
        bit = 1 << slot
        had = self._had
        if self._count < self._memory:
            self._planned.append(planned)
            self._others.append(other)
        else:
            for block in self._planned[slot]:
                left = had[block] ^ bit
                if left:
                    had[block] = left
                else:
                    del had[block]
            self._planned[slot], self._others[slot] = planned, other
        for block in planned:
            had[block] = had.get(block, 0) | bit
        self._count += 1

    def check(self) -> None:
        """Raise InvariantError unless the bit sets are those of the remembered requests."""
        had: dict[BlockId, int] = {}
        for slot, planned in enumerate(self._planned):
            for block in planned:
                had[block] = had.get(block, 0) | 1 << slot
        if had != self._had:
            raise InvariantError("rest order: bit sets and remembered requests disagree")
        for planned, packed in zip(self._planned, self._others, strict=True):
            if packed:
                rest, other, _ = _unpacked(planned, packed)
                if rest == other or sorted(rest) != sorted(other):
                    raise InvariantError("rest order: the other order is none of the same blocks")


def _packed(planned: Context, other: Context, popular: bool) -> bytes:
    """How the other rule would have had the rest: each block's place in the rest as planned.

    A third of a tuple's room, and nothing where both rules agree. popular: whether the rest was
    planned popular first.
    """
    rest = planned[len(planned) - len(other) :]
    if rest == other:
        return b""
    place = {block: at for at, block in enumerate(rest)}
    places = [place[block] for block in other]
    places.append(popular)
    return array(_code(planned), places).tobytes()


def _code(planned: Context) -> str:
    """Array code of numbers below its length."""
    return "B" if len(planned) <= 256 else "I"


def _unpacked(planned: Context, packed: bytes) -> tuple[Context, Context, bool]:
    """The rest as planned, by the other rule, and whether the former was popular first."""
    places = array(_code(planned), packed)
    popular = bool(places.pop())
    rest = planned[len(planned) - len(places) :]
    return rest, tuple([rest[at] for at in places]), popular


def _run(order: Context, tokens: dict[BlockId, int]) -> int:
    """Tokens of the leading blocks that are keys of `tokens`."""
    total = 0
    for block in order:
        if block not in tokens:
            break
        total += tokens[block]
    return total
