"""Residency: what an engine still has of each request. Pure; one owner, one engine.

The engine's own hashes stay opaque names of blocks. Engines may hold one block twice (vLLM does):
a block is lost with its last copy.

A request registers with its first token, when the engine has its whole prompt: whatever was
evicted while it waited has been computed again. A block whose `Stored` is still on its way is not
lost; one that a later step took before the token was seen is (`Followed.overtaken`).

What the events say is doubted when they contradict themselves (`doubts`), and audited against
what the engine says it found: see `held_when_scheduled`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import inf

import msgspec

from cp_ray.core.types import Eviction, RequestId
from cp_ray.errors import InvariantError
from cp_ray.workers.block_trie import ROOT, BlockTrie
from cp_ray.workers.cache_events import CacheEvent, Cleared, EngineHash, Removed, Stored
from cp_ray.workers.eviction_order import EvictionOrder
from cp_ray.workers.followed import Followed

MAX_REQUESTS = 65_536
MAX_RUNS = 8_192
"""Stored runs remembered for audits."""

Name = EngineHash | tuple[int, EngineHash]
"""An engine's hash; with its group where that is not 0."""


class Path(msgspec.Struct, frozen=True):
    """A prompt as the keys of its whole blocks. findable: how many of them a cache may give back.

    run, clears: runs stored and times cleared when it was made, for its audit. salt: of its cache.
    """

    keys: tuple[int, ...]
    findable: int
    run: int
    clears: int
    salt: str | None


class _Run(msgspec.Struct, frozen=True):
    """A stored run. already: how many of its leading blocks were held before."""

    number: int
    already: int


class Residency:
    """What one engine holds, and how much of each registered request is still usable.

    page_size: tokens of a block. capacity: blocks the engine has, None = not known. copies: whether
    the engine may hold one block twice. One that does not keeps a tree: a block stored again was
    removed unheard, and so was one whose parent is removed, as a tree loses its leaves first.
    groups: the engine's groups of layers that are followed, None = all.
    order: proofs from the order of evictions, for an engine that evicts what was freed longest ago;
    it needs `sent` and `ended`.
    max_requests: how many are followed; the least recently registered is forgotten first, and
    reported as lost.
    """

    def __init__(
        self,
        page_size: int,
        capacity: int | None = None,
        max_requests: int = MAX_REQUESTS,
        *,
        copies: bool = True,
        groups: frozenset[int] | None = None,
        order: EvictionOrder | None = None,
    ) -> None:
        self.page_size = page_size
        self.doubts = 0
        """Events that prove that others were not heard: an unknown parent or name, more blocks than
        the engine has; in an engine without copies a second one, or a block without its parent; a
        block evicted before one that nobody needed since."""
        self.other_sizes = 0
        """Runs in blocks of another size, left out."""
        self._capacity = capacity
        self._may_copy = copies
        self._follows = groups
        self._order = order
        self._max_requests = max_requests
        self._runs = 0
        self._clears = -1
        self._clear()

    def apply(self, events: Sequence[CacheEvent], made_at: float = -inf) -> list[Eviction]:
        """Take over one batch of events; returns the requests that lost usable tokens.

        made_at: when the engine made the batch, seconds of its clock.

        Judged at the end of the batch: a block removed and stored again in one engine step was
        never missing. `Cleared` drops all requests without an eviction each: it is a new epoch.
        """
        missing: list[int] = []
        for event in events:
            match event:
                case Stored():
                    self._stored(event)
                case Removed():
                    missing.extend(self._removed(event, made_at))
                case Cleared():
                    self._clear()
                    missing.clear()
        if self._capacity is not None and self._copies > self._capacity:
            self.doubts += 1
        shrunk: dict[RequestId, int] = {}
        for slot in missing:
            if not self._trie.is_free(slot) and not self._trie.copies[slot]:
                self.doubts += not self._may_copy and self._trie.holds_below(slot)
                shrunk |= self._followed.lose(slot)
                self._followed.prune(slot)
        shrunk |= self._followed.overtaken(made_at)
        return [Eviction(request, left * self.page_size) for request, left in shrunk.items()]

    def path(self, prompt: Sequence[int], salt: str | None = None) -> Path:
        """The prompt's blocks. Its last token is always computed, so never all of it is found."""
        # vLLM salts the first block; its descendants inherit the difference.
        keys = self._trie.keys(prompt, ((salt,),) if salt else ())
        findable = max(len(prompt) - 1, 0) // self.page_size
        return Path(tuple(keys), findable, self._runs, self._clears, salt)

    def sent(self, request: RequestId, path: Path) -> None:
        """A request is about to be handed to the engine."""
        if self._order is not None:
            self._order.sent(request, path.keys, path.salt)

    def ended(self, request: RequestId, rest: Sequence[int], *, whole: bool, at: float) -> None:
        """It was answered whole, or broken off; only the first call for a request counts.

        rest: all tokens behind the prompt's whole blocks, the answer's too. at: see `apply`.
        """
        if self._order is not None:
            self._order.ended(request, rest, whole=whole, at=at)

    def register(self, request: RequestId, path: Path, at: float = inf) -> list[Eviction]:
        """Follow a request the engine has just prefilled; returns those forgotten for it.

        at: when its first token was seen, of the clock of `apply`. A prompt handed in before the
        cache was cleared is not followed: nobody knows which side of that it was computed on.
        """
        if path.clears != self._clears:
            return []
        return [Eviction(oldest, 0) for oldest in self._followed.add(request, path.keys, at)]

    def held_tokens(self, path: Path) -> int:
        """Leading tokens of a prompt the engine should find now, in whole blocks."""
        return self._leading(path.keys[: path.findable]) * self.page_size

    def held_when_scheduled(self, path: Path, cached_tokens: int) -> int | None:
        """What `held_tokens` was when the engine scheduled the request and found `cached_tokens`.

        For requests that run, or have just ended: the blocks they found are pinned. What they
        computed beyond came as a run that starts there; how much of that run was held already,
        by these books, is what the engine should have found and did not. None: the run has not
        been heard yet, or the cache was cleared since.
        """
        found = cached_tokens // self.page_size
        if path.clears != self._clears:
            return None
        known = self._leading(path.keys[:found])
        if found == len(path.keys):
            return cached_tokens if known == found else None
        run = self._run_at.get(path.keys[found])
        if run is None or run.number <= path.run:
            return None
        if known == found:
            known = min(found + run.already, path.findable)
        return known * self.page_size

    def held(self) -> dict[RequestId, int]:
        """Usable leading tokens of every request followed."""
        left = self._followed.blocks()
        return {request: blocks * self.page_size for request, blocks in left.items()}

    @property
    def requests(self) -> int:
        """Requests followed."""
        return len(self._followed)

    @property
    def blocks(self) -> int:
        """Blocks known."""
        return len(self._trie)

    def check(self) -> None:
        """Raise InvariantError unless trie, names and requests agree."""
        copies: dict[int, int] = {}
        for name, slot in self._named.items():
            copies[slot] = copies.get(slot, 0) + 1 + self._further.get(name, 0)
        _require(self._further.keys() <= self._named.keys(), "a copy of no block")
        _require(sum(copies.values()) == self._copies, "copies are miscounted")
        seen = list(self._trie.subtree(ROOT))
        _require(len(seen) == len(self._trie) + 1, "a block is out of reach")
        for slot in seen[1:]:
            _require(self._trie.copies[slot] == copies.pop(slot, 0), "copies differ from names")
            above = self._trie.parent[slot]
            _require(self._trie.depth[slot] == self._trie.depth[above] + 1, "depth is not below")
        _require(not copies, "a name leads out of the trie")
        self._followed.check()
        if self._order is not None:
            self._order.check()

    def _clear(self) -> None:
        self._clears += 1
        self._trie = BlockTrie(self.page_size)
        self._copies = 0
        self._groups: set[int] = set()
        self._named: dict[Name, int] = {}
        self._further: dict[Name, int] = {}
        self._followed = Followed(self._trie, self._max_requests)
        self._run_at: OrderedDict[int, _Run] = OrderedDict()
        if self._order is not None:
            self._order.begin_anew(self._trie)

    def _stored(self, event: Stored) -> None:
        trie, named = self._trie, self._named
        if self._follows is not None and event.group not in self._follows:
            return
        if event.block_size != self.page_size:
            self.other_sizes += 1
            return
        self._groups.add(event.group)
        above = ROOT
        if event.parent is not None:
            parent = named.get(_name(event.group, event.parent))
            if parent is None:
                self.doubts += 1
                return
            above = parent
        keys = trie.keys(event.tokens, event.extra, trie.key(above))
        already, leading = 0, True
        for hashed, key in zip(event.hashes, keys, strict=True):
            name = hashed if event.group == 0 else (event.group, hashed)
            # A known name keeps its place: names are unique but for a 64-bit collision.
            slot = named.get(name)
            if slot is None:
                slot = named[name] = trie.child(above, key)
            else:
                self._further[name] = self._further.get(name, 0) + 1
                self.doubts += not self._may_copy
            leading = leading and trie.copies[slot] > 0
            already += leading
            trie.copies[slot] += 1
            if self._order is not None:
                self._order.stored(slot, key)
            above = slot
        self._copies += len(keys)
        self._runs += 1
        if keys:
            self._run_at[keys[0]] = _Run(self._runs, already)
            self._run_at.move_to_end(keys[0])
            if len(self._run_at) > MAX_RUNS:
                self._run_at.popitem(last=False)

    def _removed(self, event: Removed, made_at: float) -> Iterator[int]:
        if event.group not in self._groups:
            return  # layers whose blocks are not followed
        for hashed in event.hashes:
            name = _name(event.group, hashed)
            slot = self._named.get(name)
            if slot is None:
                self.doubts += 1
                continue
            further = self._further.pop(name, 0)
            if further > 1:
                self._further[name] = further - 1
            if not further:
                del self._named[name]
            self._copies -= 1
            self._trie.copies[slot] -= 1
            if not self._trie.copies[slot]:
                if self._order is not None:
                    self.doubts += self._order.removed(slot, made_at)
                yield slot

    def _leading(self, keys: Sequence[int]) -> int:
        for index, key in enumerate(keys):
            if not self._trie.held(key):
                return index
        return len(keys)


def _name(group: int, hashed: EngineHash) -> Name:
    return hashed if group == 0 else (group, hashed)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(f"residency: {message}")
