"""The index actor and its client on real Ray, Serve and Redis, with real kills."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import ray
from ray import cloudpickle, serve

from cp_ray.config import AppConfig
from cp_ray.core.types import (
    BlockId,
    Dump,
    DumpRequest,
    Eviction,
    EvictionReport,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
    Step,
)
from cp_ray.index_actor.actor import obtain_index
from cp_ray.index_actor.client import IndexClient
from cp_ray.index_actor.serve_live_set import LiveSet
from cp_ray.named_actor import NAMESPACE, index_prefix, names_with, redis_name
from cp_ray.store import wire
from cp_ray.store.client import START, Store
from cp_ray.store.embedded_actor import redis_url

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])

APP = "indexed"
CONFIG = AppConfig(engine="simulated", plan_deadline_ms=400)
PAGE = 16


class StandIn:
    """What the index needs of an engine replica: its facts, and a process to kill."""

    def record_replica_metadata(self) -> dict[str, int]:
        return {"page_size": PAGE, "capacity_tokens": 100_000}

    async def pid(self) -> tuple[str, int]:
        return serve.get_replica_context().replica_tag, os.getpid()


@pytest.fixture(scope="module")
def engine(serve_url: str) -> Iterator[Any]:
    deployment = serve.deployment(StandIn).options(
        name="Engine",
        num_replicas=2,
        health_check_period_s=0.5,
        ray_actor_options={"num_cpus": 0.1},
    )
    yield serve.run(deployment.bind(), name=APP, route_prefix=f"/{APP}")
    serve.delete(APP)


def plan_request(name: str, *blocks: str, head: str = "h") -> PlanRequest:
    context = tuple(BlockId(block) for block in blocks)
    return PlanRequest(RequestId(name), HeadId(head), 32, context, (160,) * len(context), 8)


def run(test: Callable[[IndexClient], Awaitable[None]]) -> None:
    async def main() -> None:
        client = IndexClient(APP, CONFIG)
        try:
            client.start()
            await until(lambda: two_live(client))
            await test(client)
        finally:
            await client.close()

    asyncio.run(main())


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := await condition():
            return result
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


async def two_live(client: IndexClient) -> bool:
    state = await client.state()
    return state is not None and len(state["replicas"]) == 2 and state["redis_connected"]


async def counter(client: IndexClient, name: str) -> int:
    state = await client.state()
    return int(state["counters"].get(name, 0)) if state else 0


async def index_pid(client: IndexClient) -> int:
    state = await client.state()
    assert state is not None
    return int(state["pid"])


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


async def equals(client: IndexClient, name: str, value: int) -> bool:
    return await counter(client, name) == value


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


def test_a_killed_index_costs_no_wait_and_answers_again_within_seconds(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        assert await client.plan([plan_request("k1", "a")])
        os.kill(await index_pid(client), signal.SIGKILL)
        await until(lambda: is_none(client))
        began = time.monotonic()
        assert await client.plan([plan_request("k2", "a")]) is None
        assert time.monotonic() - began < 0.2
        await until(lambda: client.plan([plan_request(f"k{time.monotonic_ns()}", "a")]), 15)
        await until(lambda: two_live(client))

    run(test)


def test_an_index_that_has_lost_one_of_its_tasks_begins_anew(engine: Any) -> None:
    """Else it would be blind for good, and nothing would say so."""

    def lose_one(actor: Any) -> None:
        def fails(now: float) -> None:
            raise ValueError("not foreseen")

        actor._hearing.tick = fails

    async def test(client: IndexClient) -> None:
        before = await index_pid(client)
        await client.actor.__ray_call__.remote(lose_one)

        async def another() -> bool:
            state = await client.state()
            return state is not None and int(state["pid"]) != before

        await until(another, 30)
        await until(lambda: two_live(client))

    run(test)


def test_the_collector_does_not_go_over_what_imports_made(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        frozen = await client.actor.__ray_call__.remote(lambda _: gc.get_freeze_count())
        assert frozen > 50_000, "each full pass would take a tenth of a second"

    run(test)


async def is_none(client: IndexClient) -> bool:
    return await client.plan([plan_request(f"n{time.monotonic_ns()}", "a")]) is None


def test_a_hung_index_costs_the_deadline_once_and_its_late_plan_is_taken_back(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        reserved = await counter(client, "reserved")
        pid = await index_pid(client)
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert await client.plan([plan_request("h1", "a")]) is None
            first = time.monotonic() - began
            began = time.monotonic()
            assert await client.plan([plan_request("h2", "a")]) is None
            second = time.monotonic() - began
        finally:
            os.kill(pid, signal.SIGCONT)
        assert first >= 0.35
        assert second < 0.2
        await until(lambda: client.plan([plan_request(f"h{time.monotonic_ns()}", "a")]))
        planned = 1
        await until(lambda: equals(client, "reserved", reserved + planned))
        assert client.counters()["late"] == 1

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


def test_a_killed_replica_leaves_the_live_set_within_seconds(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        uid, pid = (await engine.broadcast("pid").results_async())[0]
        os.kill(pid, signal.SIGKILL)

        async def left() -> bool:
            state = await client.state()
            return state is not None and uid not in state["replicas"]

        await until(left, 10)
        await until(lambda: two_live(client), 20)

    run(test)


def test_without_the_long_poll_the_live_set_is_polled(engine: Any) -> None:
    async def main() -> None:
        seen: list[list[ReplicaInfo]] = []
        live_set = LiveSet(APP, "Engine", seen.append)
        live_set.source = "poll"
        follower = asyncio.create_task(live_set.run())
        pids = dict(await engine.broadcast("pid").results_async())

        async def all_seen() -> bool:
            return bool(seen) and {info.replica for info in seen[-1]} == set(pids)

        await until(all_seen)
        assert {(info.page_size, info.capacity_tokens) for info in seen[-1]} == {(PAGE, 100_000)}
        follower.cancel()

    asyncio.run(main())


def test_feedback_is_bounded_and_never_raises_without_an_index() -> None:
    async def main() -> None:
        client = IndexClient("no such application", CONFIG)
        for number in range(70_000):
            client.feedback(Settled(RequestId(str(number)), 0, ok=True))
        assert client.counters()["feedback_dropped"] == 70_000 - 65_536

    asyncio.run(main())


def test_redis_is_started_again_on_its_address_when_it_dies(engine: Any) -> None:
    async def test(client: IndexClient) -> None:
        url = await redis_url(CONFIG, APP)
        actor = ray.get_actor(redis_name(APP), namespace=NAMESPACE)
        pid = await actor.pid.remote()
        os.kill(pid, signal.SIGKILL)

        async def new_pid() -> bool:
            return await actor.pid.remote() not in (None, pid)

        await until(new_pid)
        assert await redis_url(CONFIG, APP) == url
        await until(lambda: two_live(client))

    run(test)


def test_nothing_is_left_running_when_the_application_is_deleted(engine: Any) -> None:
    """The last test here: it deletes the application that the others use."""

    async def main() -> int:
        await asyncio.to_thread(obtain_index, APP, CONFIG)
        await redis_url(CONFIG, APP)
        pid = int(await ray.get_actor(redis_name(APP), namespace=NAMESPACE).pid.remote())
        await asyncio.to_thread(serve.delete, APP)

        async def gone() -> bool:
            return not names_with(index_prefix(APP)) and not names_with(redis_name(APP))

        await until(gone, 20)
        return pid

    pid = asyncio.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
