"""Followed requests: each stands on the last block of its prompt that the engine still has for it.

A request is added with its first token. Of the blocks missing then, some are about to be heard of,
others are lost already, in steps heard while its token waited: all that was said before its token
decides (`overtaken`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import inf

from cp_ray.core.types import RequestId
from cp_ray.errors import InvariantError
from cp_ray.workers.block_trie import ROOT, BlockTrie


class Followed:
    """Owner of the requests on one trie, and of its blocks without a copy: they are kept for them.

    most: requests followed; the least recently added is forgotten first.
    """

    def __init__(self, trie: BlockTrie, most: int) -> None:
        self._trie = trie
        self._most = most
        self._at: OrderedDict[RequestId, int] = OrderedDict()
        self._on: dict[int, set[RequestId]] = {}
        self._awaited: OrderedDict[RequestId, float] = OrderedDict()

    def __len__(self) -> int:
        """Requests followed."""
        return len(self._at)

    def add(self, request: RequestId, keys: Sequence[int], at: float) -> list[RequestId]:
        """Follow a request whose prompt has these blocks; returns those forgotten for it.

        at: time of its first token, of the engine's clock, seconds; inf = not known.
        """
        self._leave(request)
        trie, slot, missing = self._trie, ROOT, False
        for key in keys:
            slot = trie.child(slot, key)
            missing = missing or not trie.copies[slot]
        if slot != ROOT:
            self._put(request, slot)
            if missing and at < inf:
                self._awaited[request] = at
        forgotten = []
        while len(self._at) > self._most:
            oldest = next(iter(self._at))
            self._leave(oldest)
            forgotten.append(oldest)
        return forgotten

    def lose(self, slot: int) -> dict[RequestId, int]:
        """A block is gone: blocks left of every request that needed it."""
        above = self._trie.parent[slot]
        lost: dict[RequestId, int] = {}
        emptied = [below for below in self._trie.subtree(slot) if below in self._on]
        for below in emptied:
            for request in tuple(self._on[below]):
                lost[request] = self._move(request, above)
        for below in emptied:
            self.prune(below)
        return lost

    def overtaken(self, made_at: float) -> dict[RequestId, int]:
        """Blocks left of requests with blocks missing though all of their steps were heard.

        made_at: when the engine made the newest step heard: what it said before is known.
        """
        lost: dict[RequestId, int] = {}
        while self._awaited:
            request, at = next(iter(self._awaited.items()))
            if at >= made_at:
                break
            del self._awaited[request]
            slot = stood = self._at[request]
            trie, last = self._trie, stood
            while slot != ROOT:
                if not trie.copies[slot]:
                    last = trie.parent[slot]
                slot = trie.parent[slot]
            if last != stood:
                lost[request] = self._move(request, last)
                self.prune(stood)
        return lost

    def blocks(self) -> dict[RequestId, int]:
        """Blocks left of every request."""
        return {request: self._trie.depth[slot] for request, slot in self._at.items()}

    def prune(self, slot: int) -> None:
        """Free the block and those above it that nothing keeps: no copy, no child, no request."""
        trie = self._trie
        while slot != ROOT and not trie.is_free(slot):
            if trie.copies[slot] or not trie.is_leaf(slot) or slot in self._on:
                return
            slot = trie.free(slot)

    def check(self) -> None:
        """Raise InvariantError unless both views of the requests agree, and each block is kept."""
        at = {request: slot for slot, names in self._on.items() for request in names}
        _require(all(self._on.values()), "an empty list of requests stays")
        _require(at == self._at, "requests and their blocks differ")
        _require(len(self._at) <= self._most, "too many requests are followed")
        _require(ROOT not in self._on, "a request stands at the root")
        _require(self._awaited.keys() <= self._at.keys(), "blocks of no request are awaited")
        for slot in self._trie.subtree(ROOT):
            kept = slot == ROOT or self._trie.copies[slot] or slot in self._on
            _require(bool(kept or not self._trie.is_leaf(slot)), "an empty block stays")

    def _move(self, request: RequestId, slot: int) -> int:
        """Put a request on a block above its own; the blocks left."""
        self._take(request)
        if slot == ROOT:
            del self._at[request]
            self._awaited.pop(request, None)
            return 0
        self._put(request, slot)
        return self._trie.depth[slot]

    def _put(self, request: RequestId, slot: int) -> None:
        self._at[request] = slot
        self._on.setdefault(slot, set()).add(request)

    def _take(self, request: RequestId) -> None:
        slot = self._at[request]
        self._on[slot].discard(request)
        if not self._on[slot]:
            del self._on[slot]

    def _leave(self, request: RequestId) -> None:
        slot = self._at.get(request)
        if slot is None:
            return
        self._take(request)
        del self._at[request]
        self._awaited.pop(request, None)
        self.prune(slot)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(f"followed requests: {message}")
