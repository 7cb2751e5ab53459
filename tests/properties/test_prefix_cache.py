"""PrefixCache against a naive model: a list of physical pages, each searched one by one."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cp_ray.core.pages import Piece
from cp_ray.core.prefix_cache import PrefixCache, Sharing
from cp_ray.core.types import RequestId

LENGTHS = {"a": 1, "b": 2, "c": 3, "d": 5, "e": 4}
Tokens = tuple[tuple[str, int], ...]


@dataclass
class Page:
    """content: all tokens up to its end, once it is shared. idle_since: last release."""

    content: Tokens | None
    users: set[RequestId] = field(default_factory=set)
    filled: bool = False
    idle_since: int = 0


@dataclass
class Held:
    tokens: Tokens
    pages: list[Page]
    orphan: bool = False
    done: bool = False


class Naive:
    def __init__(self, capacity: int, size: int, sharing: Sharing, duplicates: bool) -> None:
        self.capacity, self.size = capacity // size, size
        self.sharing, self.duplicates = sharing, duplicates
        self.pages: list[Page] = []
        self.clock = 0
        self.running: dict[RequestId, Held] = {}
        self.left: dict[RequestId, int] = {}
        self.lost: dict[RequestId, int] = {}
        self.prompt: dict[RequestId, Tokens] = {}

    def content(self, tokens: Tokens, page: int) -> Tokens | None:
        end = (page + 1) * self.size
        return tokens[:end] if end <= len(tokens) else None

    def leading(self, tokens: Tokens) -> list[Page]:
        found = []
        for number in range(len(tokens) // self.size):
            content = self.content(tokens, number)
            page = next((p for p in self.pages if p.content == content), None)
            if page is None:
                break
            found.append(page)
        return found

    def lookup(self, tokens: Tokens) -> int:
        return min(len(self.leading(tokens)), max(len(tokens) - 1, 0) // self.size) * self.size

    def admit(self, request: RequestId, tokens: Tokens) -> int | None:
        found = self.leading(tokens)
        cached = self.lookup(tokens) // self.size
        if self.duplicates:
            found = found[:cached]
        count = -(-len(tokens) // self.size)
        reused = len(found) if self.sharing == "step" else cached
        need = count - reused
        free = self.capacity - len(self.pages)
        idle = [p for p in self.pages if not p.users and not any(p is f for f in found)]
        if need > free + len(idle):
            return None
        for page in found:
            page.users.add(request)
        for page in sorted(idle, key=lambda p: p.idle_since)[: max(need - free, 0)]:
            self.remove(page)
        self.shrink()
        fresh = [Page(None, {request}) for _ in range(need)]
        self.pages += fresh
        # `found` may hold one page more than is reused: the recomputed last one, pinned as well.
        held = Held(tokens, found[:reused] + fresh)
        held.pages += found[reused:]
        self.running[request] = held
        if self.sharing == "step":
            for number, page in enumerate(held.pages):
                page.content = self.content(tokens, number)
        return cached * self.size

    def remove(self, page: Page) -> None:
        self.pages = [other for other in self.pages if other is not page]

    def prefilled(self, request: RequestId) -> None:
        held = self.running[request]
        if held.done or held.orphan:
            return
        held.done = True
        whole = len(held.tokens) // self.size
        if self.sharing == "finished":
            kept: list[Page] = []
            private = [p for p in held.pages if p.content is None]
            tail = [private.pop() for _ in range(bool(len(held.tokens) % self.size))]
            for number in range(whole):
                content = self.content(held.tokens, number)
                page = next((p for p in self.pages if p.content == content), None)
                if page is None:
                    page = private.pop()
                    page.content = content
                page.users.add(request)
                kept.append(page)
            for page in private:
                self.remove(page)
            held.pages = kept + tail
        for page in held.pages[:whole]:
            page.filled = True
        if whole:
            self.left[request] = whole * self.size
            self.prompt[request] = held.tokens

    def release(self, request: RequestId) -> None:
        held = self.running.pop(request)
        for page in reversed(held.pages):
            page.users.discard(request)
            if page.users:
                continue
            self.clock += 1
            page.idle_since = self.clock
            if held.orphan or page.content is None or not page.filled:
                self.remove(page)

    def clear(self) -> None:
        self.pages = [page for page in self.pages if page.users]
        for page in self.pages:
            page.content = None
        for held in self.running.values():
            held.orphan = True
        self.left.clear()
        self.lost.clear()
        self.prompt.clear()

    def shrink(self) -> None:
        for request, tokens in list(self.prompt.items()):
            now = len(self.leading(tokens)) * self.size
            if now < self.left[request]:
                self.left[request] = self.lost[request] = now
            if not now:
                del self.left[request], self.prompt[request]

    def take(self) -> dict[RequestId, int]:
        lost, self.lost = self.lost, {}
        return lost


class Cache(RuleBasedStateMachine):
    @initialize(
        size=st.sampled_from([1, 2, 3, 4]),
        capacity=st.integers(8, 40),
        kind=st.sampled_from([("step", False), ("step", True), ("finished", False)]),
    )
    def start(self, size: int, capacity: int, kind: tuple[Sharing, bool]) -> None:
        self.cache = PrefixCache(capacity, size, sharing=kind[0], duplicates=kind[1])
        self.naive = Naive(capacity, size, *kind)
        self.count = 0

    def pieces(self, blocks: str) -> tuple[list[Piece], Tokens]:
        tokens = tuple((block, number) for block in blocks for number in range(LENGTHS[block]))
        return [(block, LENGTHS[block]) for block in blocks], tokens

    @rule(blocks=st.text("abcde", min_size=1, max_size=6), at_once=st.booleans())
    def admit(self, blocks: str, at_once: bool) -> None:
        pieces, tokens = self.pieces(blocks)
        request = RequestId(f"r{self.count}")
        self.count += 1
        assert self.cache.lookup(pieces) == self.naive.lookup(tokens)
        cached = self.cache.admit(request, pieces)
        assert cached == self.naive.admit(request, tokens)
        if cached is not None and at_once:
            self.step("prefilled", request)
            self.step("release", request)

    def step(self, name: str, request: RequestId) -> None:
        getattr(self.cache, name)(request)
        getattr(self.naive, name)(request)

    @precondition(lambda self: self.naive.running)
    @rule(data=st.data(), name=st.sampled_from(["prefilled", "prefilled", "release"]))
    def proceed(self, data: st.DataObject, name: str) -> None:
        self.step(name, data.draw(st.sampled_from(sorted(self.naive.running))))

    @rule(sure=st.integers(0, 9))
    def clear(self, sure: int) -> None:
        if not sure:
            self.cache.clear()
            self.naive.clear()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        assert self.cache.used_tokens == len(self.naive.pages) * self.naive.size
        told = {e.request_id: e.tokens_left for e in self.cache.take_evictions()}
        self.naive.shrink()
        assert told == self.naive.take()


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
