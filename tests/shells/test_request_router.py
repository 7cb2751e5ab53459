"""The request routers on real Serve replicas: what is planned, and where all else goes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from ray import serve
from ray.serve.config import RequestRouterConfig

from cp_ray.router.dispatch import Dispatcher
from cp_ray.router.request_router import PlainReplicaRouter
from tests.shells.trivial_engine import (
    REPLICAS,
    SLOTS,
    TrivialEngine,
    patient,
    request,
    routed,
    served_by,
    step,
    wait_for_uids,
)

pytestmark = pytest.mark.ray
APP = "routing"


@pytest.fixture(scope="module")
def application(serve_url: str) -> Iterator[Any]:
    with routed(APP) as it:
        yield it


@pytest.fixture
def engine(application: Any) -> Any:
    return serve.get_deployment_handle("Engine", APP)


@pytest.fixture
def uids(engine: Any) -> list[str]:
    """Ids of the replicas, when all of them are up."""
    return wait_for_uids(engine, REPLICAS)


def test_fifteen_concurrent_calls_of_one_parent_all_follow_the_plan(
    application: Any, uids: list[str]
) -> None:
    planned = [uids[i % REPLICAS] for i in range(15)]
    served = application.fan_out.remote([step(uid) for uid in planned]).result(timeout_s=20)
    assert served == planned


def test_a_group_larger_than_its_replica_spills_to_one_other_replica(
    application: Any, uids: list[str]
) -> None:
    time.sleep(1)  # by Serve's count calls of the test before may still hold slots
    served = Counter(application.fan_out.remote([step(uids[0])] * (2 * SLOTS)).result(timeout_s=20))
    assert served[uids[0]] >= SLOTS
    assert len(served) == 2


def test_more_calls_than_slots_wait_in_line_and_are_all_answered(
    application: Any, uids: list[str]
) -> None:
    calls = 4 * SLOTS * REPLICAS
    served = Counter(application.fan_out.remote([step(uids[1])] * calls).result(timeout_s=40))
    assert sum(served.values()) == calls
    assert set(served) == set(uids)


def test_calls_without_a_plan_are_balanced(application: Any, uids: list[str]) -> None:
    served = Counter(application.fan_out.remote([None] * 16).result(timeout_s=20))
    assert set(served) == set(uids)
    assert max(served.values()) <= SLOTS


def test_a_branch_without_a_replica_meets_on_one_replica(application: Any, uids: list[str]) -> None:
    steps = [step(None, branch=f"b/{i % 2}") for i in range(8)]
    served = application.fan_out.remote(steps).result(timeout_s=20)
    assert len(set(served[0::2])) == 1
    assert len(set(served[1::2])) == 1


def test_when_the_planned_replica_is_gone_the_whole_group_moves_to_one_other(
    application: Any, engine: Any, uids: list[str]
) -> None:
    async def pid_of(uid: str) -> int:
        deliveries = [d async for d in Dispatcher(engine).stream(step(uid), request())]
        return int(deliveries[0].chunks[0].text)

    os.kill(asyncio.run(pid_of(uids[0])), signal.SIGKILL)
    served = application.fan_out.remote([step(uids[0])] * SLOTS).result(timeout_s=20)
    assert len(set(served)) == 1
    assert uids[0] not in served


@pytest.fixture(scope="module")
def plain(serve_url: str) -> Iterator[Any]:
    """An application with reuse=plain: Serve's own router, and no plans."""
    engine = serve.deployment(TrivialEngine).options(
        name="Engine",
        num_replicas=2,
        max_ongoing_requests=SLOTS,
        max_queued_requests=200,
        health_check_period_s=0.5,
        ray_actor_options={"num_cpus": 0.1},
        request_router_config=RequestRouterConfig(request_router_class=PlainReplicaRouter),
    )
    serve.run(engine.bind(), name="plain", route_prefix="/plain")
    yield serve.get_deployment_handle("Engine", "plain")
    serve.delete("plain")


def test_plain_requests_beside_a_stopped_replica_are_all_answered(plain: Any) -> None:
    uids = wait_for_uids(plain, 2)

    async def with_a_stop() -> tuple[list[str], float, list[str], float]:
        dispatcher = patient(plain)
        pids: dict[str, int] = {}
        while len(pids) < 2:
            deliveries = [d async for d in dispatcher.stream(None, request())]
            pids[deliveries[0].replica] = int(deliveries[0].chunks[0].text)
        os.kill(pids[uids[0]], signal.SIGSTOP)
        try:
            began = time.monotonic()
            served = await asyncio.gather(*(served_by(dispatcher, None) for _ in range(2 * SLOTS)))
            seconds = time.monotonic() - began
            began = time.monotonic()
            later = [await served_by(dispatcher, None) for _ in range(4)]
            return list(served), seconds, later, time.monotonic() - began
        finally:
            os.kill(pids[uids[0]], signal.SIGCONT)

    served, seconds, later, later_s = asyncio.run(with_a_stop())
    assert set(served) == {uids[1]}
    assert seconds < 10
    assert set(later) == {uids[1]}
    assert later_s < 2, "it is known to have stopped"
