"""The router's part of pre-warming: the real index and engine, without Ray between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from cp_ray.config import AppConfig
from cp_ray.core.index import ContextIndex
from cp_ray.core.packed import packed
from cp_ray.core.types import (
    BlockId,
    Eviction,
    Feedback,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Routed,
    Settled,
    Step,
)
from cp_ray.core.warming import Offer, Warming
from cp_ray.errors import EngineUnavailable, WireError
from cp_ray.router import warming as router_warming
from cp_ray.router.warming import Warmer
from cp_ray.workers.engine import Delivery, EngineRequest, Sampling
from cp_ray.workers.simulated_engine import SimulatedEngine

OLD, NEW = (ReplicaInfo(ReplicaId(name), 16, 1 << 18) for name in ("old", "new"))
PROMPT = tuple(range(100, 100 + 352))
"""Head of 32 tokens, blocks of 160 and 128, question of 32."""


class Fleet:
    """An index, and the engine of the replica that joins."""

    def __init__(self) -> None:
        self.index = ContextIndex()
        self.index.set_replicas([OLD])
        self.warming = Warming(self.index)
        self.heard: list[Feedback] = []
        self.engine = SimulatedEngine(AppConfig(engine="simulated", prefill_tokens_per_s=1e6))
        self.sent: list[EngineRequest] = []
        self.dead = False

    def grow(self) -> None:
        for number in range(3):
            name = RequestId(f"q{number}")
            blocks = (BlockId("a"), BlockId("b"))
            self.index.plan([PlanRequest(name, HeadId("h"), 32, blocks, (160, 128), 32)], 1.0)
            self.index.hear(Settled(name, 0, ok=True), 2.0)
        self.index.set_replicas([OLD, NEW])
        self.warming.joined([NEW])

    async def warm_offers(self) -> list[Offer]:
        return self.warming.offers()

    async def warm(self, offer: Offer, name: RequestId) -> Step | None:
        return self.warming.claim(offer, name, 3.0)

    def feedback(self, event: Feedback) -> None:
        self.heard.append(event)
        self.index.hear(event, 4.0)

    async def stream(
        self, step: Step | None, request: EngineRequest, issued: Callable[[], None] | None = None
    ) -> AsyncIterator[Delivery]:
        assert issued is None, "no client waits"
        assert step is not None
        assert step.replica == NEW.replica
        self.sent.append(request)
        if self.dead:
            raise EngineUnavailable("gone")
        async for chunk in self.engine.generate(request):
            yield Delivery(NEW.replica, [chunk])

    def evicted(self, evictions: list[Eviction]) -> None:
        raise AssertionError(evictions)

    def new_epoch(self) -> None:
        raise AssertionError


def request(
    name: str, prompt: tuple[int, ...] = PROMPT, salt: str | None = "acme"
) -> EngineRequest:
    return EngineRequest(RequestId(name), packed(prompt), Sampling(max_tokens=64), salt)


def warmer(fleet: Fleet) -> Warmer:
    names = iter(range(99))
    return Warmer(fleet, fleet, lambda: f"w{next(names)}")


def test_a_kept_prompts_beginning_is_prefilled_with_its_salt_and_one_token_of_answer() -> None:
    async def run() -> None:
        fleet = Fleet()
        await fleet.engine.start(fleet)
        mine = warmer(fleet)
        mine.sent(request("q2"))
        fleet.grow()
        assert await mine.once() == 1
        assert await mine.once() == 0
        (sent,) = fleet.sent
        assert sent.prompt == packed(PROMPT[:320])
        assert (sent.cache_salt, sent.sampling.max_tokens) == ("acme", 1)
        assert fleet.engine.held() == {"w0": 320}
        assert fleet.heard[0] == Routed(RequestId("w0"), NEW.replica)
        assert fleet.heard[-1] == Settled(RequestId("w0"), 0, ok=True)
        fleet.index.check()

    asyncio.run(run())


def test_a_conversation_is_prefilled_again_whole_and_under_its_own_name() -> None:
    async def run() -> None:
        fleet = Fleet()
        fleet.index.set_replicas([OLD, NEW])
        await fleet.engine.start(fleet)
        mine = warmer(fleet)
        name, blocks = RequestId("turn0"), (BlockId("a"), BlockId("b"))
        asked = PlanRequest(name, HeadId("h"), 32, blocks, (160, 128), 32, conversation="talk")
        fleet.index.plan([asked], 1.0, only=OLD.replica)
        fleet.warming.asked([asked])
        fleet.index.hear(Settled(name, 0, ok=True), 2.0)
        mine.sent(request("turn0"))
        talks = fleet.warming.leaving({OLD.replica})
        fleet.index.set_replicas([NEW])
        fleet.warming.left(talks)
        assert await mine.once() == 1
        (sent,) = fleet.sent
        assert (sent.request_id, sent.prompt, sent.cache_salt) == (name, packed(PROMPT), "acme")
        assert fleet.engine.held() == {name: len(PROMPT)}
        fleet.index.check()

    asyncio.run(run())


def test_what_another_router_sent_is_left_to_it() -> None:
    async def run() -> None:
        fleet = Fleet()
        mine = warmer(fleet)
        mine.sent(request("mine"))
        fleet.grow()
        assert await mine.once() == 0
        assert fleet.sent == []
        assert len(fleet.warming.offers()) == 1

    asyncio.run(run())


def test_a_failure_costs_the_warmth_only() -> None:
    async def run() -> None:
        fleet = Fleet()
        fleet.dead = True
        mine = warmer(fleet)
        mine.sent(request("q2"))
        fleet.grow()
        assert await mine.once() == 0
        assert fleet.heard == [Settled(RequestId("w0"), 0, ok=False)]
        assert len(fleet.index.load.ledger) == 0

    asyncio.run(run())


def test_what_nobody_foresaw_ends_no_pre_warming_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_warming, "PERIOD_S", 0.01)

    async def run() -> None:
        fleet = Fleet()
        await fleet.engine.start(fleet)
        mine = warmer(fleet)
        mine.sent(request("q2"))
        fleet.grow()
        offers, faults = fleet.warm_offers, [RuntimeError("not foreseen"), WireError("garbled")]

        async def failing() -> list[Offer]:
            if faults:
                raise faults.pop()
            return await offers()

        monkeypatch.setattr(fleet, "warm_offers", failing)
        task = asyncio.create_task(mine.run())
        async with asyncio.timeout(3):
            while not fleet.engine.held():  # noqa: ASYNC110 - the task makes it true
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(run())


def test_prompts_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_warming, "KEPT_TOKENS", 2 * len(PROMPT))

    async def run() -> None:
        fleet = Fleet()
        await fleet.engine.start(fleet)
        mine = warmer(fleet)
        for name in ("q2", "x", "y"):
            mine.sent(request(name))
        fleet.grow()
        assert await mine.once() == 0, "q2 was the oldest of three"

    asyncio.run(run())
