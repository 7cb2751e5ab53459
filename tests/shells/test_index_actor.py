"""The index actor and its client on real Ray, Serve and Redis."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from ray import cloudpickle

from cp_ray.core.types import (
    Dump,
    DumpRequest,
    Eviction,
    EvictionReport,
    ReplicaId,
    RequestId,
    Settled,
    Step,
)
from cp_ray.index_actor.client import IndexClient
from cp_ray.store import wire
from cp_ray.store.client import START, Store
from cp_ray.store.embedded_actor import redis_url
from tests.shells.index_support import (
    CONFIG,
    PAGE,
    application,
    counter,
    equals,
    plan_request,
    until,
)
from tests.shells.index_support import run as run_on

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])
APP = "indexed"


@pytest.fixture(scope="module")
def engine(serve_url: str) -> Iterator[Any]:
    with application(APP) as handle:
        yield handle


def run(test: Callable[[IndexClient], Awaitable[None]]) -> None:
    run_on(APP, test)


def test_a_second_request_follows_the_first_to_its_replica(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        reserved = await counter(client, "reserved")
        [first] = await client.plan([plan_request("a1", "x", "y", "z")]) or []
        client.feedback(Settled(RequestId("a1"), 0, ok=True))
        await until(lambda: equals(client, "reserved", reserved))
        [second] = await client.plan([plan_request("a2", "z", "x", "y", "w")]) or []
        assert first.replica in {uid for uid, _ in await engine.broadcast("pid").results_async()}
        assert second.replica == first.replica
        assert second.context[:3] == first.context
        assert second.reused_tokens == (32 + 3 * 160) // PAGE * PAGE
        assert client.counters()["planned"] == 2

    run(test)


def test_feedback_goes_with_the_next_plan_and_a_bad_one_does_not_cost_it(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        await client.plan([plan_request("w1", "x")])
        settled = await counter(client, "settled")
        client.feedback(Settled(RequestId("w1"), 0, ok=True))
        await client.plan([plan_request("w2", "x")])  # sooner than feedback goes by itself
        assert await counter(client, "settled") == settled + 1
        requests = wire.encode([plan_request("w3", "x")])
        answer = await client.actor.plan.remote(requests, time.monotonic() + 60, b"no feedback")
        assert [step.request_id for step in wire.decode(answer, list[Step])] == ["w3"]

    run(test)


class Picky:
    """An index that cannot take one feedback."""

    def __init__(self, index: Any) -> None:
        self.index = index

    def hear(self, feedback: Any, now: float) -> None:
        if feedback.request_id == "bad":
            raise KeyError("not foreseen")
        self.index.hear(feedback, now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.index, name)


def test_feedback_that_the_index_cannot_take_costs_none_of_another_request(engine: Any) -> None:
    def be_picky(actor: Any) -> None:
        actor._index = Picky(actor._index)

    def be_as_before(actor: Any) -> None:
        actor._index = actor._index.index

    async def test(client: IndexClient) -> None:
        await client.plan([plan_request("f1", "x")])
        reserved = await counter(client, "reserved")
        await client.actor.__ray_call__.remote(be_picky)
        told = [Settled(RequestId(name), 0, ok=True) for name in ("bad", "f1")]
        await client.actor.hear.remote(wire.encode(told))
        await client.actor.__ray_call__.remote(be_as_before)
        assert await counter(client, "reserved") == reserved - 1

    run(test)


def test_an_eviction_report_reaches_the_index_through_redis(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        [held] = await client.plan([plan_request("e1", "p", "q", head="own")]) or []
        client.feedback(Settled(RequestId("e1"), 0, ok=True))
        store = await Store.connect(await redis_url(CONFIG, APP), APP)
        evictions = await counter(client, "evictions")
        undecodable = await counter(client, "reports_undecodable")
        await store.append_report(b"\xff no report")
        report = EvictionReport(
            held.replica or ReplicaId(""), 0, 0, (Eviction(RequestId("e1"), 0),)
        )
        await store.append_report(wire.encode(report))
        await until(lambda: equals(client, "evictions", evictions + 1))
        assert await counter(client, "reports_undecodable") == undecodable + 1
        [again] = await client.plan([plan_request("e2", "p", "q", head="own")]) or []
        assert again.reused_tokens == 0
        await store.close()

    run(test)


def test_a_gap_asks_for_a_dump_and_believes_what_it_lists(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        reserved = await counter(client, "reserved")
        [kept] = await client.plan([plan_request("d1", "d", "kept", head="d")]) or []
        client.feedback(Settled(RequestId("d1"), 0, ok=True))
        await until(lambda: equals(client, "reserved", reserved))
        [lost] = await client.plan([plan_request("d2", "d", "lost", head="d")]) or []
        assert kept.replica == lost.replica
        replica = kept.replica or ReplicaId("")
        store = await Store.connect(await redis_url(CONFIG, APP), APP)
        gaps = await counter(client, "reports_gap")
        await store.append_report(wire.encode(EvictionReport(replica, 0, 99, ())))
        await until(lambda: equals(client, "reports_gap", gaps + 1))
        [step] = await client.plan([plan_request("d3", "d", "kept", head="d")]) or []
        assert step.reused_tokens == 0, "a replica that owes a dump is planned by load only"
        client.feedback(Settled(RequestId("d3"), 0, ok=False))

        async def asked() -> bool:
            requests = await store.read_dump_requests(START, 100)
            return DumpRequest(replica) in [wire.decode(data, DumpRequest) for _, data in requests]

        await until(asked)
        await store.append_report(wire.encode(Dump(replica, 0, 100, {RequestId("d1"): 360})))
        await until(lambda: equals(client, "reports_dump", 1))
        [step] = await client.plan([plan_request("d4", "d", "kept", "lost", head="d")]) or []
        assert (step.replica, step.reused_tokens) == (replica, 352)
        await store.close()

    run(test)


def test_the_collector_does_not_go_over_what_imports_made(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        frozen = await client.actor.__ray_call__.remote(lambda _: gc.get_freeze_count())
        assert frozen > 50_000, "each full pass would take a tenth of a second"

    run(test)


def test_a_deadline_is_on_the_clock_that_the_index_told(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        its_s = await client.actor.ready.remote()
        for ahead_s, wanted in ((-5.0, False), (5.0, True)):
            payload = wire.encode([plan_request(f"clock {ahead_s}", "a")])
            answer = await client.actor.plan.remote(payload, its_s + ahead_s, b"")
            assert bool(answer) is wanted
        client.feedback(Settled(RequestId("clock 5.0"), 0, ok=False))

    run(test)


def test_feedback_is_bounded_and_never_raises_without_an_index() -> None:
    async def main() -> None:
        client = IndexClient("no such application", CONFIG)
        for number in range(70_000):
            client.feedback(Settled(RequestId(str(number)), 0, ok=True))
        assert client.counters()["feedback_dropped"] == 70_000 - 65_536

    asyncio.run(main())
