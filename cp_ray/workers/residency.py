"""Residency: what an engine still has of each request. Pure; one owner, one engine.

A trie of cache blocks. A block is keyed, under its parent, by a 128-bit digest of its token run
and of what else the engine told apart by (LoRA, cache salt). The engine's own hashes stay opaque
names of blocks. Engines may hold one block twice (vLLM does): a block is lost with its last copy.

A request registers with its first token, when the engine has its whole prompt: whatever was
evicted while it waited has been computed again. A block whose `Stored` is still on its way is
not lost either: only a removal loses.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec

from cp_ray.core.types import Eviction, RequestId
from cp_ray.errors import InvariantError

EngineHash = int | bytes
"""The engine's name of a block's content; opaque."""
MAX_REQUESTS = 65_536


class Stored(msgspec.Struct, frozen=True):
    """A run of blocks entered the cache, each the child of the one before.

    extra: per block, whatever besides its tokens the engine keys it by; () = nothing.
    group: the engine's group of layers; names are unique within one.
    """

    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    tokens: tuple[int, ...]
    extra: tuple[tuple[str, ...], ...]
    block_size: int
    group: int = 0


class Removed(msgspec.Struct, frozen=True):
    """One copy of each of these blocks left the cache."""

    hashes: tuple[EngineHash, ...]
    group: int = 0


class Cleared(msgspec.Struct, frozen=True):
    """Every block left the cache."""


CacheEvent = Stored | Removed | Cleared


class _Block:
    """A place in the trie. index: blocks before it. copies: how often the engine holds it."""

    __slots__ = ("children", "copies", "index", "key", "parent", "requests")

    def __init__(self, key: bytes, parent: _Block | None, index: int) -> None:
        self.key = key
        self.parent = parent
        self.index = index
        self.copies = 0
        self.children: dict[bytes, _Block] = {}
        self.requests: set[RequestId] = set()

    def child(self, key: bytes) -> _Block:
        found = self.children.get(key)
        if found is None:
            found = self.children[key] = _Block(key, self, self.index + 1)
        return found

    def subtree(self) -> Iterator[_Block]:
        waiting = [self]
        while waiting:
            block = waiting.pop()
            waiting.extend(block.children.values())
            yield block


class Residency:
    """What one engine holds, and how much of each registered request is still usable.

    page_size: tokens of a block. max_requests: how many are followed; the least recently
    registered is forgotten first, and reported as lost.
    """

    def __init__(self, page_size: int, max_requests: int = MAX_REQUESTS) -> None:
        self.page_size = page_size
        self.ignored = 0
        """Events that could not be placed: unknown parent or hash, another block size."""
        self._max_requests = max_requests
        self._clear()

    def apply(self, events: Sequence[CacheEvent]) -> list[Eviction]:
        """Take over one batch of events; returns the requests that lost usable tokens.

        Judged at the end of the batch: a block removed and stored again in one engine step was
        never missing. `Cleared` drops all requests without an eviction each: it is a new epoch.
        """
        missing: list[_Block] = []
        for event in events:
            match event:
                case Stored():
                    self._stored(event)
                case Removed():
                    missing.extend(self._removed(event))
                case Cleared():
                    self._clear()
                    missing.clear()
        shrunk: dict[RequestId, int] = {}
        for block in missing:
            if block.copies == 0:
                shrunk |= self._lose(block)
                self._prune(block)
        return [Eviction(request, tokens) for request, tokens in shrunk.items()]

    def register(
        self, request: RequestId, prompt: Sequence[int], salt: str | None = None
    ) -> list[Eviction]:
        """Follow a request the engine has just prefilled; returns those forgotten for it."""
        self._leave(request)
        block = self._root
        for key in self._keys(prompt, salt):
            block = block.child(key)
        if block is not self._root:
            block.requests.add(request)
            self._at[request] = block
        forgotten = []
        while len(self._at) > self._max_requests:
            oldest = next(iter(self._at))
            self._leave(oldest)
            forgotten.append(Eviction(oldest, 0))
        return forgotten

    def held_tokens(self, prompt: Sequence[int], salt: str | None = None) -> int:
        """Leading tokens of `prompt` the engine holds now, in whole blocks.

        The last token is always computed, so a prompt is never held to its end.
        """
        block, held = self._root, 0
        for key in self._keys(prompt[:-1], salt):
            child = block.children.get(key)
            if child is None or child.copies == 0:
                break
            block, held = child, held + self.page_size
        return held

    @property
    def requests(self) -> int:
        """Requests followed."""
        return len(self._at)

    def check(self) -> None:
        """Raise InvariantError unless trie, names and requests agree."""
        copies: dict[int, int] = {}
        for block, count in self._named.values():
            copies[id(block)] = copies.get(id(block), 0) + count
        requests: dict[RequestId, _Block] = {}
        for block in self._root.subtree():
            requests |= dict.fromkeys(block.requests, block)
            if block is self._root:
                continue
            _require(block.parent is not None, "a block has no parent")
            _require(block.copies == copies.pop(id(block), 0), "copies differ from names")
            _require(bool(block.copies or block.children or block.requests), "an empty block stays")
        _require(not copies, "a name leads out of the trie")
        _require(requests == self._at, "requests and their blocks differ")
        _require(len(self._at) <= self._max_requests, "too many requests are followed")
        _require(not self._root.requests, "a request stands at the root")

    def _clear(self) -> None:
        self._root = _Block(b"", None, -1)
        self._named: dict[tuple[int, EngineHash], tuple[_Block, int]] = {}
        self._at: OrderedDict[RequestId, _Block] = OrderedDict()

    def _stored(self, event: Stored) -> None:
        above = self._root
        if event.parent is not None:
            named = self._named.get((event.group, event.parent))
            if named is None:
                self.ignored += 1
                return
            above = named[0]
        if event.block_size != self.page_size:
            self.ignored += 1
            return
        runs = _runs(event.tokens, self.page_size)
        for name, run, extra in zip(event.hashes, runs, event.extra, strict=True):
            entry = self._named.get((event.group, name))
            # A known name keeps its place: names are unique but for a 64-bit collision.
            block, copies = entry or (above.child(_key(run, extra)), 0)
            block.copies += 1
            self._named[event.group, name] = (block, copies + 1)
            above = block

    def _removed(self, event: Removed) -> Iterator[_Block]:
        for name in event.hashes:
            entry = self._named.pop((event.group, name), None)
            if entry is None:
                self.ignored += 1
                continue
            block, copies = entry
            block.copies -= 1
            if copies > 1:
                self._named[event.group, name] = (block, copies - 1)
            if block.copies == 0:
                yield block

    def _lose(self, block: _Block) -> dict[RequestId, int]:
        """Move every request that needs `block` to its parent: that much stays usable."""
        above = block.parent
        assert above is not None  # noqa: S101 - the root is never stored
        lost: dict[RequestId, int] = {}
        emptied = [below for below in block.subtree() if below.requests]
        for below in emptied:
            for request in below.requests:
                lost[request] = block.index * self.page_size
                if above is self._root:
                    del self._at[request]
                else:
                    self._at[request] = above
                    above.requests.add(request)
            below.requests.clear()
        for below in emptied:
            self._prune(below)
        return lost

    def _leave(self, request: RequestId) -> None:
        block = self._at.pop(request, None)
        if block is not None:
            block.requests.discard(request)
            self._prune(block)

    def _prune(self, block: _Block) -> None:
        while block.parent and not (block.copies or block.children or block.requests):
            # A block pruned before may have been made again under the same key.
            if block.parent.children.get(block.key) is block:
                del block.parent.children[block.key]
            block = block.parent

    def _keys(self, prompt: Sequence[int], salt: str | None) -> Iterator[bytes]:
        extra: tuple[str, ...] = (salt,) if salt else ()
        for run in _runs(prompt, self.page_size):
            yield _key(run, extra)
            extra = ()  # vLLM salts the first block; its descendants inherit the difference


def _runs(tokens: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(tokens) - size + 1, size):
        yield tokens[start : start + size]


def _key(run: Sequence[int], extra: tuple[str, ...]) -> bytes:
    digest = blake2b(array("q", run).tobytes(), digest_size=16)
    digest.update(repr(extra).encode())
    return digest.digest()


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(f"residency: {message}")
