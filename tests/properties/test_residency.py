"""Residency against a naive model: a bag of physical copies, and prompts compared by token."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cp_ray.core.types import Eviction, RequestId
from cp_ray.workers.cache_events import CacheEvent, Cleared, Removed, Stored
from cp_ray.workers.residency import Residency

PAGE = 2
MAX_REQUESTS = 6
prompts = st.lists(st.integers(0, 1), min_size=0, max_size=9).map(tuple)
salts = st.sampled_from([None, "a", "b"])


Prompt = tuple[int, ...]
Path = tuple[str | None, Prompt]


def name_of(path: Path) -> int:
    """What an engine would call a block: a hash of all that leads to it."""
    return hash(path) & 0xFFFF_FFFF_FFFF


def path_of(prompt: Prompt, pages: int, salt: str | None) -> Path:
    return (salt, prompt[: pages * PAGE])


def stored(prompt: Prompt, first: int, last: int, salt: str | None) -> Stored:
    """Blocks [first, last) of a prompt enter the cache."""
    return Stored(
        hashes=tuple(name_of(path_of(prompt, index + 1, salt)) for index in range(first, last)),
        parent=name_of(path_of(prompt, first, salt)) if first else None,
        tokens=prompt[first * PAGE : last * PAGE],
        extra=tuple((salt,) if salt and index == 0 else () for index in range(first, last)),
        block_size=PAGE,
    )


def removed(*paths: Path) -> Removed:
    return Removed(tuple(map(name_of, paths)))


class ResidencyMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.residency = Residency(PAGE, max_requests=MAX_REQUESTS)
        self.copies: Counter[Path] = Counter()
        self.left: dict[RequestId, int] = {}  # pages, by request, oldest registration first
        self.prompt: dict[RequestId, tuple[Prompt, str | None]] = {}
        self.next_id = 0

    def held_pages(self, prompt: Prompt, salt: str | None) -> int:
        pages = 0
        while (pages + 1) * PAGE <= len(prompt):
            if not self.copies[path_of(prompt, pages + 1, salt)]:
                break
            pages += 1
        return pages

    def expect(self, evictions: list[Eviction], gone: set[Path]) -> None:
        """After a batch that took the paths `gone` to zero copies."""
        expected = {}
        for request, (prompt, salt) in self.prompt.items():
            lost = [
                pages - 1
                for pages in range(1, self.left[request] + 1)
                if path_of(prompt, pages, salt) in gone
            ]
            if lost:
                expected[request] = self.left[request] = min(lost)
        assert {e.request_id: e.tokens_left for e in evictions} == {
            request: pages * PAGE for request, pages in expected.items()
        }
        assert len(evictions) == len(expected)
        for request in [request for request, pages in self.left.items() if pages == 0]:
            del self.left[request], self.prompt[request]

    @rule(prompt=prompts, salt=salts, late=st.booleans())
    def prefill(self, prompt, salt, late):
        """The engine reuses the leading run it holds, and stores a copy of every other block."""
        request = RequestId(f"r{self.next_id}")
        self.next_id += 1
        pages = len(prompt) // PAGE
        held = self.held_pages(prompt, salt)
        event = stored(prompt, held, pages, salt)
        if not late:
            assert self.residency.apply([event]) == []
        forgotten = self.residency.register(request, self.residency.path(prompt, salt))
        if late:
            assert self.residency.apply([event]) == []
        for index in range(held, pages):
            self.copies[path_of(prompt, index + 1, salt)] += 1
        if pages:
            self.left[request] = pages
            self.prompt[request] = (prompt, salt)
        expected = []
        while len(self.left) > MAX_REQUESTS:
            oldest = next(iter(self.left))
            del self.left[oldest], self.prompt[oldest]
            expected.append(Eviction(oldest, 0))
        assert forgotten == expected

    @rule(prompt=prompts, salt=salts)
    def store_a_second_copy(self, prompt, salt):
        """vLLM computes the last block of an aligned prompt again and keeps both."""
        pages = len(prompt) // PAGE
        if pages and self.held_pages(prompt, salt) == pages:
            assert self.residency.apply([stored(prompt, pages - 1, pages, salt)]) == []
            self.copies[path_of(prompt, pages, salt)] += 1

    @rule(data=st.data())
    def evict_some(self, data):
        held = [path for path, count in self.copies.items() if count]
        if not held:
            return
        paths = data.draw(st.lists(st.sampled_from(sorted(held, key=repr)), max_size=4))
        paths = [path for path in paths if self.copies[path]]
        gone = set()
        events = []
        for path in paths:
            if not self.copies[path]:
                continue
            self.copies[path] -= 1
            events.append(removed(path))
            if not self.copies[path]:
                gone.add(path)
        self.expect(self.residency.apply(events), gone)

    @rule(data=st.data())
    def evict_and_store_again_in_one_step(self, data):
        firsts = [path for path, count in self.copies.items() if count == 1]
        firsts = [path for path in firsts if len(path[1]) == PAGE]
        if firsts:
            salt, prompt = data.draw(st.sampled_from(sorted(firsts, key=repr)))
            batch: list[CacheEvent] = [removed((salt, prompt)), stored(prompt, 0, 1, salt)]
            assert self.residency.apply(batch) == []

    @rule()
    def clear(self):
        assert self.residency.apply([Cleared()]) == []
        self.copies.clear()
        self.left.clear()
        self.prompt.clear()

    @rule(prompt=prompts, salt=salts)
    def held(self, prompt, salt):
        expected = self.held_pages(prompt[:-1], salt) * PAGE
        assert self.residency.held_tokens(self.residency.path(prompt, salt)) == expected

    @invariant()
    def agrees(self):
        self.residency.check()
        assert self.residency.requests == len(self.left)
        assert self.residency.doubts == 0


TestResidency = ResidencyMachine.TestCase
TestResidency.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture
def residency():
    return Residency(PAGE)


def test_the_deepest_block_goes_first_and_each_loss_is_reported_once(residency):
    prompt = (1, 1, 0, 0, 1, 0)
    residency.apply([stored(prompt, 0, 3, None)])
    residency.register(RequestId("r"), residency.path(prompt))
    deepest_first = [path_of(prompt, pages, None) for pages in (3, 2, 1)]
    reports = [residency.apply([removed(path)]) for path in deepest_first]
    assert reports == [[Eviction(RequestId("r"), left)] for left in (4, 2, 0)]
    residency.check()


def test_a_hole_ends_what_is_usable_though_later_blocks_are_still_held(residency):
    prompt = (1, 1, 0, 0, 1, 0)
    residency.apply([stored(prompt, 0, 3, None)])
    residency.register(RequestId("r"), residency.path(prompt))
    assert residency.apply([removed(path_of(prompt, 2, None))]) == [Eviction(RequestId("r"), 2)]
    assert residency.apply([removed(path_of(prompt, 3, None))]) == []
    assert residency.held_tokens(residency.path((*prompt, 0))) == 2


def test_a_request_whose_blocks_are_still_to_be_heard_of_loses_only_what_is_removed(residency):
    prompt = (1, 1, 0, 0, 1, 0)
    residency.register(RequestId("r"), residency.path(prompt))
    residency.apply([stored(prompt, 0, 1, None)])
    residency.check()
    assert residency.apply([removed(path_of(prompt, 1, None))]) == [Eviction(RequestId("r"), 0)]
    residency.check()
    assert residency.requests == 0


def test_the_engine_fills_a_hole_and_later_blocks_are_usable_again(residency):
    prompt = (1, 1, 0, 0, 1, 0)
    residency.apply([stored(prompt, 0, 3, None), removed(path_of(prompt, 2, None))])
    residency.apply([stored(prompt, 1, 2, None)])
    assert residency.held_tokens(residency.path((*prompt, 0))) == 6


def test_a_store_below_an_unknown_parent_is_left_out_and_raises_a_doubt(residency):
    residency.apply([stored((1, 1, 0, 0), 1, 2, None)])
    assert residency.doubts == 1
    residency.check()


def test_hashes_may_be_bytes_and_groups_have_their_own_names(residency):
    block = Stored((b"h" * 32,), None, (1, 1), ((),), PAGE, group=1)
    residency.apply([block])
    residency.apply([Removed((b"h" * 32,), group=0)])
    assert residency.held_tokens(residency.path((1, 1, 0))) == 2
    residency.apply([Removed((b"h" * 32,), group=1)])
    assert residency.held_tokens(residency.path((1, 1, 0))) == 0


def test_adapters_do_not_share_blocks(residency):
    residency.apply([Stored((1,), None, (1, 1), (("lora",),), PAGE)])
    assert residency.held_tokens(residency.path((1, 1, 0))) == 0
