"""The index actor when something dies or hangs, with real kills."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import ray
from ray import serve

from cp_ray.core.types import ReplicaInfo
from cp_ray.index_actor.actor import obtain_index
from cp_ray.index_actor.client import IndexClient
from cp_ray.index_actor.serve_live_set import LiveSet
from cp_ray.named_actor import NAMESPACE, index_prefix, names_with, redis_name
from cp_ray.store.embedded_actor import redis_url
from tests.shells.index_support import (
    CONFIG,
    PAGE,
    application,
    counter,
    equals,
    index_pid,
    is_none,
    plan_request,
    two_live,
    until,
)
from tests.shells.index_support import run as run_on

pytestmark = pytest.mark.ray
APP = "faulty"


@pytest.fixture(scope="module")
def engine(serve_url: str) -> Iterator[Any]:
    with application(APP) as handle:
        yield handle


def run(test: Callable[[IndexClient], Awaitable[None]]) -> None:
    run_on(APP, test)


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
