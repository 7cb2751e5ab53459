"""Cache view against a model engine: resets, holes, batches and tokens overtake each other."""

import asyncio
import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cp_ray.core.types import Eviction, RequestId
from cp_ray.workers.cache_events import CacheEvent, Cleared, Removed, Stored
from cp_ray.workers.cache_view import CacheView
from cp_ray.workers.residency import Path, Residency

PAGE = 2
blocks = st.integers(0, 3)


def prompt(block: int) -> tuple[int, ...]:
    return (block,) * PAGE + (9,)


class Believer:
    """What an index would believe: all that was sent, until it hears otherwise."""

    def __init__(self) -> None:
        self.believed: set[RequestId] = set()
        self.epochs = 0

    def evicted(self, evictions: list[Eviction]) -> None:
        self.believed -= {eviction.request_id for eviction in evictions}

    def new_epoch(self) -> None:
        self.epochs += 1
        self.believed.clear()


class ViewMachine(RuleBasedStateMachine):
    """The engine: `held` now; `untold` since its last step; `wire` published, not delivered."""

    @initialize()
    def start(self):
        self.loop = asyncio.new_event_loop()
        self.clock = itertools.count(1.0)
        self.index = Believer()
        self.view = CacheView(
            Residency(PAGE), self.index, self.drop, clock=lambda: float(next(self.clock))
        )
        self.held: set[int] = set()
        self.untold: list[CacheEvent] = []
        self.wire: list[tuple[list[CacheEvent], float]] = []
        self.asked: list[asyncio.Event] = []
        self.done: list[asyncio.Event] = []
        self.resets: list[asyncio.Task[None]] = []
        self.waiting: list[tuple[RequestId, int, Path]] = []
        self.computed: list[tuple[RequestId, Path]] = []
        self.block_of: dict[RequestId, int] = {}

    def settle(self) -> None:
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))

    async def drop(self) -> None:
        dropped, returned = asyncio.Event(), asyncio.Event()
        self.asked.append(dropped)
        await dropped.wait()
        self.done.append(returned)
        await returned.wait()

    @rule(block=blocks)
    def submit(self, block):
        request = RequestId(f"r{len(self.block_of)}")
        self.block_of[request] = block
        self.index.believed.add(request)
        self.waiting.append((request, block, self.view.residency.path(prompt(block))))

    @precondition(lambda self: self.waiting)
    @rule()
    def compute(self):
        """A step: prefill of one request, and its token on its way."""
        request, block, path = self.waiting.pop(0)
        if block not in self.held:
            self.held.add(block)
            self.untold.append(Stored((block,), None, (block,) * PAGE, ((),), PAGE))
        self.step()
        self.computed.append((request, path))

    @rule()
    def evict(self):
        if self.held:
            block = min(self.held)
            self.held.discard(block)
            self.untold.append(Removed((block,)))

    @rule()
    def step(self):
        if self.untold:
            self.wire.append((self.untold, float(next(self.clock))))
            self.untold = []

    @precondition(lambda self: self.computed)
    @rule()
    def see_a_token(self):
        self.view.register(*self.computed.pop(0))

    @precondition(lambda self: self.wire)
    @rule()
    def deliver(self):
        self.view.on_batch(*self.wire.pop(0))
        self.settle()

    @rule()
    def evict_and_tell(self):
        """Tokens on their way are overtaken."""
        self.evict()
        self.step()
        while self.wire:
            self.deliver()

    @precondition(lambda self: self.wire)
    @rule()
    def lose(self):
        """A hole is known with the next batch."""
        self.wire.pop(0)
        if not self.wire:
            self.wire.append(([], float(next(self.clock))))
        self.loop.run_until_complete(self.hole())
        self.settle()

    async def hole(self) -> None:
        self.view.on_hole()

    @rule()
    def reset(self):
        self.resets.append(self.loop.create_task(self.view.reset()))
        self.settle()

    @precondition(lambda self: self.asked)
    @rule()
    def drop_now(self):
        self.asked.pop(0).set()
        self.held.clear()
        self.untold.append(Cleared())
        self.settle()

    @precondition(lambda self: self.done)
    @rule()
    def return_now(self):
        self.done.pop(0).set()
        self.settle()

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        while self.asked or self.done:
            for rules, condition in ((self.drop_now, self.asked), (self.return_now, self.done)):
                if condition:
                    rules()
        assert all(reset.done() for reset in self.resets)
        while self.waiting:
            self.compute()
        while self.computed:
            self.see_a_token()
        for block in (7, 8):
            self.submit(block)
            self.compute()
            self.see_a_token()
            while self.wire:
                self.deliver()
        residency = self.view.residency
        residency.check()
        held = {
            block
            for block in range(9)
            if residency.held_tokens(residency.path(prompt(block))) == PAGE
        }
        assert held == self.held, "the view ends as the engine"
        known = {name: self.block_of[name] for name in self.index.believed}
        assert set(known.values()) <= self.held, "no ghost"
        assert set(residency.held()) <= set(known), "whoever is followed is believed"
        assert residency.doubts == 0 or self.index.epochs
        self.loop.close()


TestView = ViewMachine.TestCase
TestView.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
