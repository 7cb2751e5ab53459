"""Eviction order: a block still believed though one used after it has been evicted is a ghost.

vLLM evicts the block that was freed longest ago. So of two blocks that no request runs on, the one
whose last request had ended before the last request of the other was even sent goes first. When
the other is removed and the first is still believed, its `Removed` was lost. Uses the order of
sending and ending that the replica sees itself, never an engine's inner time.

Whatever is not known for sure proves nothing: blocks that no request was seen to use, and removals
made before the end of the last one was seen. Of a block held twice, the copy freed last is the last
to go.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from math import inf

import msgspec
import numpy as np

from cp_ray.core.types import RequestId
from cp_ray.errors import InvariantError
from cp_ray.workers.block_trie import ROOT, TOP, BlockTrie

MAX_AWAITED = 8_192
"""Blocks of ended requests that are not heard of yet."""
_UNKNOWN = 0
_NEVER = -1
_Running = tuple[set[int], set[int]]
"""Keys of the prompts of running requests, and of their last blocks."""


class _Sent(msgspec.Struct, frozen=True):
    """A request on its way. keys: of its prompt's blocks. after: the last end before it.

    clears: times the cache was empty anew till then.
    """

    keys: Sequence[int]
    salt: str | None
    after: int
    clears: int


class _Use(msgspec.Struct):
    """A request that ended. blocks: it used last. awaited: of those, not heard of yet.

    after: its blocks were used after that end, _NEVER = not known, it was broken off. at: it was
    seen to have ended, seconds of the engine's clock.
    """

    after: int = _NEVER
    at: float = inf
    blocks: int = 0
    awaited: int = 0


class EvictionOrder:
    """Owner of who used each block of one trie last. Ends are numbered from 1.

    A number in `_last`, by slot, is of the end of the block's last request, 0 = not known.
    """

    def __init__(self) -> None:
        self._sent: dict[RequestId, _Sent] = {}
        self._ends = 0
        self._clears = 0
        self.begin_anew(BlockTrie(1))

    def begin_anew(self, trie: BlockTrie) -> None:
        """The cache is empty now; requests on their way will be seen to end."""
        self._trie = trie
        self._clears += 1
        self._last = array("q")
        self._uses: OrderedDict[int, _Use] = OrderedDict()
        self._awaited: OrderedDict[int, int] = OrderedDict()

    def sent(self, request: RequestId, keys: Sequence[int], salt: str | None) -> None:
        """A request is about to be handed to the engine. keys: of its prompt's blocks."""
        self._sent[request] = _Sent(keys, salt, self._ends, self._clears)

    def ended(self, request: RequestId, rest: Sequence[int], *, whole: bool, at: float) -> None:
        """Its last token was seen, or it was broken off; a request that was not sent is ignored.

        rest: tokens behind its prompt's blocks; of the last nothing is computed. whole: it ran to
        its end, so the engine had all its blocks, and freed them before `at`, seconds of the
        engine's clock.
        """
        sent = self._sent.pop(request, None)
        if sent is None:
            return
        self._ends += 1
        number = self._ends
        whole = whole and sent.clears == self._clears
        self._uses[number] = _Use(sent.after, at) if whole else _Use()
        above = sent.keys[-1] if sent.keys else TOP
        extra = ((sent.salt,),) if sent.salt and not sent.keys else ()
        for key in (*sent.keys, *self._trie.keys(rest[:-1], extra, above)):
            slot = self._trie.find(key)
            if slot is not None and self._trie.copies[slot]:
                self._set(slot, number)
            elif whole:
                self._await(key, number)
            else:
                self._drop_if_unused(self._unawaited(key))
        self._drop_if_unused(number)

    def stored(self, slot: int, key: int) -> None:
        """The engine has one more copy of this block."""
        if self._trie.copies[slot] > 1:
            self._set(slot, _UNKNOWN)  # an answer may be what another prompt holds
            return
        number = self._unawaited(key)
        self._set(slot, number)
        self._drop_if_unused(number)

    def removed(self, slot: int, made_at: float) -> bool:
        """Its last copy is gone; whether that proves another block a ghost.

        made_at: when the engine said so, of the clock of `ended`.
        """
        use = self._uses.get(self._last[slot])
        self._set(slot, _UNKNOWN)
        return use is not None and use.at <= made_at and self._older(use.after)

    def check(self) -> None:
        """Raise InvariantError unless uses count their blocks, and only held blocks have one."""
        counts: dict[int, int] = {}
        for slot, number in enumerate(self._last):
            if number:
                counts[number] = counts.get(number, 0) + 1
                _require(self._trie.copies[slot] > 0, "a block that is gone was used last")
        _require(counts == {n: u.blocks for n, u in self._uses.items() if u.blocks}, "miscounted")
        _require(list(self._uses) == sorted(self._uses), "uses are out of order")
        _require(all(u.blocks or u.awaited for u in self._uses.values()), "an empty use stays")

    def _older(self, after: int) -> bool:
        """Whether a block is believed that no request used after this end, or runs on now."""
        running: _Running | None = None
        while self._uses:
            number = next(iter(self._uses))
            if number > after:
                return False
            if self._uses[number].blocks:
                running = running or self._running()  # many keys: once for all the ends
                if self._let_go(number, running):
                    return True
            del self._uses[number]
        return False

    def _running(self) -> _Running:
        prompts = {key for sent in self._sent.values() for key in sent.keys}
        tips = {sent.keys[-1] if sent.keys else TOP for sent in self._sent.values()}
        return prompts, tips

    def _let_go(self, number: int, running: _Running) -> bool:
        """Whether a block of this end is in no running request; those that are become unknown."""
        slots = np.flatnonzero(np.frombuffer(self._last, np.int64) == number).tolist()
        free = [slot for slot in slots if not self._is_running(slot, *running)]
        if not free:
            for slot in slots:
                self._last[slot] = _UNKNOWN
        return bool(free)

    def _is_running(self, slot: int, prompts: set[int], tips: set[int]) -> bool:
        """Whether the block is of a prompt, or below one's last: it may be of its answer."""
        if self._trie.key(slot) in prompts:
            return True
        while slot != ROOT:
            slot = self._trie.parent[slot]
            if self._trie.key(slot) in tips:
                return True
        return False

    def _set(self, slot: int, number: int) -> None:
        if slot >= len(self._last):
            self._last.extend([_UNKNOWN] * (slot + 1 - len(self._last)))
        before = self._last[slot]
        if before == number:
            return
        use = self._uses.get(number)
        self._last[slot] = number if use is not None else _UNKNOWN
        if use is not None:
            use.blocks += 1
        if before:
            self._uses[before].blocks -= 1
            self._drop_if_unused(before)

    def _await(self, key: int, number: int) -> None:
        self._drop_if_unused(self._unawaited(key))
        self._awaited[key] = number
        self._uses[number].awaited += 1
        if len(self._awaited) > MAX_AWAITED:
            key = next(iter(self._awaited))
            self._drop_if_unused(self._unawaited(key))

    def _unawaited(self, key: int) -> int:
        """Await this block no more; the end it was awaited for."""
        number = self._awaited.pop(key, _UNKNOWN)
        if number in self._uses:
            self._uses[number].awaited -= 1
        return number

    def _drop_if_unused(self, number: int) -> None:
        use = self._uses.get(number)
        if use is not None and not use.blocks and not use.awaited:
            del self._uses[number]


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(f"eviction order: {message}")
