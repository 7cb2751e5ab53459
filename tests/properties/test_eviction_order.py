"""Eviction order against a naive engine: no doubt without a loss, and a loss is soon proven."""

from __future__ import annotations

import random
from collections import deque

import pytest

from cp_ray.core.types import RequestId
from cp_ray.workers.cache_events import CacheEvent, Cleared, Removed, Stored
from cp_ray.workers.eviction_order import EvictionOrder
from cp_ray.workers.residency import Residency

PAGE, BLOCKS = 2, 9
Chain = tuple[int, ...]


class Engine:
    """Blocks by chain of what they hold; freed ones wait in line, the longest first to go."""

    def __init__(self) -> None:
        self.line: list[tuple[Chain, int]] = []
        self.used: dict[tuple[Chain, int], int] = {}
        self.running: dict[str, list[tuple[Chain, int]]] = {}
        self.events: list[CacheEvent] = []
        self._copy = 0

    def run(self, name: str, prompt: Chain) -> bool:
        chains = [prompt[: end + 1] for end in range(len(prompt))]
        found: list[tuple[Chain, int]] = []
        for chain in chains[:-1]:  # the last is always computed
            copies = [block for block in (*self.used, *self.line) if block[0] == chain]
            if not copies:
                break
            found.append(min(copies, key=lambda block: block[1]))
        line = [block for block in self.line if block not in found]
        new = len(chains) - len(found)
        room = BLOCKS - len(self.used) - len(self.line)
        if room + len(line) < new:
            return False
        self.line = line
        for block in self.line[: max(new - room, 0)]:
            self.events.append(Removed((_name(block[0]),)))
        self.line = self.line[max(new - room, 0) :]
        for block in found:
            self.used[block] = self.used.get(block, 0) + 1
        stored = []
        for chain in chains[len(found) :]:
            self._copy += 1
            stored.append((chain, self._copy))
            self.used[stored[-1]] = 1
        parent = _name(found[-1][0]) if found else None
        hashes = tuple(_name(chain) for chain, _ in stored)
        tokens = tuple(token for chain, _ in stored for token in _tokens(chain[-1]))
        self.events.append(Stored(hashes, parent, tokens, (), PAGE))
        self.running[name] = found + stored
        return True

    def grow(self, name: str, chain: Chain) -> None:
        """An answer fills one more block."""
        if len(self.used) + len(self.line) == BLOCKS:
            if not self.line:
                return
            self.events.append(Removed((_name(self.line.pop(0)[0]),)))
        self._copy += 1
        block = (chain, self._copy)
        self.used[block] = 1
        parent = _name(chain[:-1])
        self.events.append(Stored((_name(chain),), parent, _tokens(chain[-1]), (), PAGE))
        self.running[name].append(block)

    def end(self, name: str) -> None:
        for block in reversed(self.running.pop(name)):
            self.used[block] -= 1
            if not self.used[block]:
                del self.used[block]
                self.line.append(block)

    def reset(self) -> None:
        self.line = []
        self.events.append(Cleared())


def _name(chain: Chain) -> int:
    return int("1" + "".join(map(str, chain)))


def _tokens(letter: int) -> tuple[int, ...]:
    return (letter,) * PAGE


class Drive:
    """Events come in order, but as late as they like; ends are seen late, too."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = Engine()
        self.residency = Residency(PAGE, BLOCKS, order=EvictionOrder())
        self.way: deque[tuple[list[CacheEvent], float]] = deque()
        self.ended: list[tuple[str, Chain]] = []
        self.prompts: dict[str, int] = {}
        self.waiting: list[tuple[str, Chain]] = []
        self.now = 0.0
        self.count = self.heard = 0

    def send(self) -> None:
        self.count += 1
        prompt = self.random.choices(range(3), k=self.random.randint(1, 3))
        tokens = [token for letter in prompt for token in _tokens(letter)]
        name = f"q{self.count}"
        self.residency.sent(RequestId(name), self.residency.path(tokens))
        self.waiting.append((name, tuple(prompt)))
        self.prompts[name] = len(prompt)

    def admit(self) -> None:
        if self.waiting and self.engine.run(*self.waiting[0]):
            name, prompt = self.waiting.pop(0)
            self.step()
            if self.random.random() < 0.5:  # an answer of a block, that may be held already
                self.engine.grow(name, (*prompt, self.random.randrange(3)))
                self.step()

    def end(self) -> None:
        if self.engine.running:
            name = self.random.choice(list(self.engine.running))
            rest = self.rest(name)
            self.engine.end(name)
            if self.random.random() < 0.8:
                self.ended.append((name, rest))
            else:  # whoever breaks off knows at once
                self.see(name, rest, whole=False)

    def end_is_seen(self) -> None:
        if self.ended:
            self.see(*self.ended.pop(self.random.randrange(len(self.ended))), whole=True)

    def reset(self) -> None:
        if not self.engine.running:
            self.engine.reset()
            self.step()

    def hear(self) -> None:
        if self.way:
            events, made_at = self.way.popleft()
            self.heard += sum(isinstance(event, Removed) for event in events)
            self.residency.apply(events, made_at)

    def step(self) -> None:
        self.now += 1
        self.way.append((self.engine.events, self.now))
        self.engine.events = []

    def see(self, name: str, rest: Chain, *, whole: bool) -> None:
        self.now += 1
        del self.prompts[name]
        self.residency.ended(RequestId(name), rest, whole=whole, at=self.now)

    def rest(self, name: str) -> Chain:
        """What it answered, and a last token that nothing is computed of."""
        answer = self.engine.running[name][self.prompts[name] :]
        return (*(token for chain, _ in answer for token in _tokens(chain[-1])), 0)


@pytest.mark.parametrize("seed", range(8))
def test_without_a_loss_nothing_is_doubted_however_late_it_is_heard(seed: int) -> None:
    drive = Drive(seed)
    acts = (drive.send, drive.admit, drive.end, drive.end_is_seen, drive.hear, drive.reset)
    weights = (1.0, 1.0, 1.0, 1.0, 2.0, 0.02)
    for count in range(4000):
        if count % 100 == 0:  # for a while little is heard, then all of it
            weights = (1.0, 1.0, 1.0, 1.0, drive.random.choice((0.2, 2.0, 9.0)), 0.02)
        drive.random.choices(acts, weights)[0]()
        assert drive.residency.doubts == 0
        if count % 50 == 0:
            drive.residency.check()
    assert drive.heard > 300


class AtOnce:
    """Events and ends are heard at once, but for events that `hear` is told to lose."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.residency = Residency(PAGE, order=EvictionOrder())
        self.way: list[tuple[list[CacheEvent], float]] = []
        self.lost: list[CacheEvent] = []
        self.heard: list[CacheEvent] = []
        self.now = 0.0

    def start(self, name: str, prompt: Chain, *, late: bool = False) -> None:
        tokens = [token for letter in prompt for token in _tokens(letter)]
        self.residency.sent(RequestId(name), self.residency.path(tokens))
        assert self.engine.run(name, prompt)
        self.now += 1
        if late:
            self.way.append((self.engine.events, self.now))
            self.engine.events = []
        else:
            self.hear()

    def end(self, name: str, rest: Chain = ()) -> None:
        self.engine.end(name)
        self.now += 1
        self.residency.ended(RequestId(name), rest, whole=True, at=self.now)
        self.residency.check()

    def hear(self, lose: int = 0) -> None:
        """All that is on its way, but for the first events of the newest step."""
        for events, made_at in self.way:
            self.heard += events
            self.residency.apply(events, made_at)
        events, self.engine.events = self.engine.events, []
        self.lost += events[:lose]
        self.heard += events[lose:]
        self.residency.apply(events[lose:], self.now)


def test_a_removal_lost_is_proven_by_the_first_of_a_request_sent_after_its_last_one_ended() -> None:
    it = AtOnce()
    for count, prompt in enumerate(((0, 1, 2), (3, 3, 3), (4, 4, 4))):
        it.start(f"q{count}", prompt)
        it.end(f"q{count}")
    assert it.engine.run("q3", (5,))
    it.hear(lose=1)
    assert it.lost == [Removed((_name((0, 1, 2)),))]
    it.start("q4", (6, 6))
    assert it.residency.doubts == 0, "the other blocks of the first go with theirs"
    it.start("q5", (7,))
    assert it.residency.doubts == 1, "the second was sent after the first had ended"


def test_a_block_that_an_answer_computed_again_is_no_ghost() -> None:
    it = AtOnce()
    it.start("first", (0, 1, 2))
    it.end("first")
    it.start("long", (0, 1))
    it.engine.grow("long", (0, 1, 2))
    it.hear()
    it.start("second", (3, 3, 3))
    it.end("second")
    it.start("third", (4, 4, 4))
    it.end("third")
    it.start("fourth", (5, 5, 5))
    assert it.engine.used[((0, 1, 2), 5)] == 1, "it is in the second copy"
    assert it.residency.doubts == 0


def _answer_found_by_another() -> AtOnce:
    """`long` runs on, and another prompt has found the block of its answer and ended."""
    it = AtOnce()
    it.start("long", (0, 1))
    it.engine.grow("long", (0, 1, 2))
    it.hear()
    it.start("same", (0, 1, 2, 3))
    it.end("same")
    return it


def test_a_block_of_an_answer_that_another_prompt_found_is_no_ghost_while_the_answer_runs() -> None:
    it = _answer_found_by_another()
    for name, prompt in (("second", (4, 4, 4)), ("third", (5, 5, 5)), ("fourth", (6, 6, 6))):
        it.start(name, prompt)
        it.end(name)
    assert it.engine.used[((0, 1, 2), 3)] == 1, "it runs"
    assert it.residency.doubts == 0


def test_a_block_of_an_answer_is_used_until_the_answer_ends() -> None:
    it = _answer_found_by_another()
    it.start("second", (4, 4, 4))
    it.end("second")
    it.end("long", (2, 2, 9))
    it.start("third", (5, 5, 5, 5, 5))
    assert Removed((_name((4, 4, 4)),)) in it.heard
    assert it.residency.doubts == 0
    it.end("third")
    it.start("fourth", (6, 6))
    assert it.heard[-2] == Removed((_name((0, 1, 2)),))
    it.start("fifth", (7, 7))
    assert it.residency.doubts == 0


def test_a_removal_heard_after_the_block_was_computed_again_proves_nothing() -> None:
    it = AtOnce()
    for name, prompt in (("first", (0, 0, 0)), ("second", (1, 1, 1)), ("third", (2, 2, 2))):
        it.start(name, prompt)
        it.end(name)
    it.start("fourth", (3, 3, 3), late=True)
    it.end("fourth")
    it.start("again", (0, 0, 0), late=True)
    it.end("again")
    it.hear()
    assert it.heard.count(Removed((_name((0, 0, 0)),))) == 1
    assert it.residency.doubts == 0
