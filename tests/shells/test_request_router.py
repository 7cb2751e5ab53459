"""The request router and the dispatcher on real Serve replicas, with real kills."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
import ray
from ray import cloudpickle, serve
from ray.serve.config import RequestRouterConfig

from cp_ray.core.types import ReplicaId, RequestId, Step
from cp_ray.errors import EngineError, EngineGone, InvalidRequest, Overloaded
from cp_ray.router.dispatch import REPLICA_LOST, Dispatcher
from cp_ray.router.liveness import Liveness
from cp_ray.router.request_router import PlainReplicaRouter, PlannedReplicaRouter
from cp_ray.store import wire
from cp_ray.workers.engine import Chunk, Delivery, EngineRequest, Sampling

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SLOTS = 8
REPLICAS = 4


class TrivialEngine:
    """Answers with its process id; the prompt's first token says how."""

    def __init__(self) -> None:
        self.uid = serve.get_replica_context().replica_tag
        self.aborted: list[str] = []

    async def generate(
        self, payload: bytes, cp_plan: dict[str, Any] | None = None
    ) -> AsyncIterator[bytes]:
        request = wire.decode(payload, EngineRequest)
        how = request.prompt[0]
        if how == REFUSE:
            raise InvalidRequest("too long", param="messages", code="too_long", status=422)
        if how == BUG:
            raise ZeroDivisionError("oops")
        if how == DIE_ON_PLAN and (cp_plan or {}).get("replica") == self.uid:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == GONE_ON_PLAN and (cp_plan or {}).get("replica") == self.uid:
            raise EngineGone("the engine hangs")
        if how == BUSY:
            time.sleep(1.5)  # noqa: ASYNC251 - on purpose: the engine's loop is stuck for a while
        try:
            if how != LONG:
                await asyncio.sleep(0.05)
            for _ in range(1000 if how == LONG else 2):
                chunk = Chunk(str(os.getpid()), 1, 1, 0)
                yield wire.encode(Delivery(ReplicaId(self.uid), [chunk]))
                if how == GONE_BEHIND:
                    raise EngineGone("the engine hangs")
                await asyncio.sleep(0.05 if how == LONG else 0)
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request.request_id)
            raise

    async def who(self) -> tuple[str, list[str]]:
        return self.uid, self.aborted


NORMAL, REFUSE, BUG, DIE_ON_PLAN, LONG, BUSY, GONE_ON_PLAN, GONE_BEHIND = range(8)


class Parent:
    """Makes many engine calls within one request, as Chain-of-Agents does."""

    def __init__(self, engine: Any) -> None:
        self.dispatcher = Dispatcher(engine)

    async def fan_out(self, steps: list[Step | None]) -> list[str]:
        return list(await asyncio.gather(*(served_by(self.dispatcher, s) for s in steps)))


def request(how: int = NORMAL, name: str = "r") -> EngineRequest:
    return EngineRequest(RequestId(name), (how, 1, 2), Sampling())


def step(replica: str | None, branch: str = "b/0") -> Step:
    planned = ReplicaId(replica) if replica else None
    return Step(RequestId("r"), (), planned, branch, (0,), 0, "holder")


async def served_by(dispatcher: Dispatcher, plan: Step | None, how: int = NORMAL) -> str:
    deliveries = [d async for d in dispatcher.stream(plan, request(how))]
    return deliveries[0].replica


@pytest.fixture(scope="module")
def application(serve_url: str) -> Iterator[Any]:
    engine = serve.deployment(TrivialEngine).options(
        name="Engine",
        num_replicas=REPLICAS,
        max_ongoing_requests=SLOTS,
        max_queued_requests=200,
        health_check_period_s=0.5,
        ray_actor_options={"num_cpus": 0.1},
        request_router_config=RequestRouterConfig(
            request_router_class=PlannedReplicaRouter, max_backoff_s=0.1
        ),
    )
    parent = serve.deployment(Parent).options(
        max_ongoing_requests=500, ray_actor_options={"num_cpus": 0.1}
    )
    yield serve.run(parent.bind(engine.bind()), name="routing", route_prefix="/routing")
    serve.delete("routing")


@pytest.fixture
def engine(application: Any) -> Any:
    return serve.get_deployment_handle("Engine", "routing")


@pytest.fixture
def uids(engine: Any) -> list[str]:
    """Ids of the replicas, when all of them are up."""
    return wait_for_uids(engine, REPLICAS)


def wait_for_uids(engine: Any, count: int) -> list[str]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            found = sorted(uid for uid, _ in engine.broadcast("who").results())
        except ray.exceptions.RayError:  # one of them has just been killed
            found = []
        if len(found) == count:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not {count} replicas within 30 s")


def test_fifteen_concurrent_calls_of_one_parent_all_follow_the_plan(
    application: Any, uids: list[str]
) -> None:
    planned = [uids[i % REPLICAS] for i in range(15)]
    served = application.fan_out.remote([step(uid) for uid in planned]).result(timeout_s=20)
    assert served == planned


def test_a_group_larger_than_its_replica_spills_to_one_other_replica(
    application: Any, uids: list[str]
) -> None:
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


def test_the_engines_own_error_comes_back_whole(engine: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(served_by(Dispatcher(engine), None, REFUSE))
    error = caught.value
    assert type(error) is InvalidRequest
    assert (error.message, error.param, error.code, error.status) == (
        "too long",
        "messages",
        "too_long",
        422,
    )


def test_a_bug_in_the_engine_is_an_engine_error(engine: Any) -> None:
    with pytest.raises(EngineError, match="ZeroDivisionError: oops"):
        asyncio.run(served_by(Dispatcher(engine), None, BUG))


def test_a_replica_lost_before_it_answers_costs_no_request(engine: Any, uids: list[str]) -> None:
    served = asyncio.run(served_by(Dispatcher(engine), step(uids[0]), DIE_ON_PLAN))
    assert served in uids[1:]


def test_a_replica_lost_while_it_answers_is_an_error_that_says_so(
    engine: Any, uids: list[str]
) -> None:
    async def broken() -> None:
        async for delivery in Dispatcher(engine).stream(step(uids[0]), request(LONG)):
            os.kill(int(delivery.chunks[0].text), signal.SIGKILL)

    with pytest.raises(EngineError, match="lost while it answered"):
        asyncio.run(broken())


def patient(engine: Any) -> Dispatcher:
    """Asks after 0.2 s of silence, and gives 0.5 s for the answer."""
    return Dispatcher(engine, Liveness(engine, ask_after_s=0.2, answer_s=0.5))


async def stopped_by(dispatcher: Dispatcher, uid: str) -> int:
    """Stop the process of a replica; returns its id."""
    deliveries = [d async for d in dispatcher.stream(step(uid), request())]
    assert deliveries[0].replica == uid
    pid = int(deliveries[0].chunks[0].text)
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_request_to_a_stopped_replica_goes_elsewhere_and_later_ones_at_once(
    engine: Any, uids: list[str]
) -> None:
    async def with_a_stop() -> tuple[list[str], list[float]]:
        dispatcher = patient(engine)
        pid = await stopped_by(dispatcher, uids[2])
        served, seconds = [], []
        try:
            for _ in range(2):
                began = time.monotonic()
                served.append(await served_by(dispatcher, step(uids[2])))
                seconds.append(time.monotonic() - began)
        finally:
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and served[-1] != uids[2]:
            await asyncio.sleep(0.1)
            served.append(await served_by(dispatcher, step(uids[2])))
        return served, seconds

    served, seconds = asyncio.run(with_a_stop())
    assert uids[2] not in served[:2]
    assert seconds[0] < 5
    assert seconds[1] < 0.6, "it is known to have stopped"
    assert served[-1] == uids[2], "it runs again"


def test_an_answer_whose_replica_stops_is_an_error_that_says_so(
    engine: Any, uids: list[str]
) -> None:
    async def broken() -> None:
        pid = 0
        try:
            async for delivery in patient(engine).stream(step(uids[2]), request(LONG)):
                pid = int(delivery.chunks[0].text)
                os.kill(pid, signal.SIGSTOP)
        finally:
            os.kill(pid, signal.SIGCONT)

    with pytest.raises(EngineError, match="lost while it answered") as caught:
        asyncio.run(asyncio.wait_for(broken(), 20))
    assert caught.value.code == REPLICA_LOST


def test_a_replica_that_is_only_slow_keeps_its_requests(engine: Any, uids: list[str]) -> None:
    assert asyncio.run(served_by(patient(engine), step(uids[1]), BUSY)) == uids[1]


def test_a_request_to_a_replica_whose_engine_is_gone_goes_elsewhere_and_later_ones_at_once(
    engine: Any, uids: list[str]
) -> None:
    async def ask() -> tuple[str, frozenset[str], str]:
        liveness = Liveness(engine)
        dispatcher = Dispatcher(engine, liveness)
        served = await served_by(dispatcher, step(uids[3]), GONE_ON_PLAN)
        left_out = liveness.stopped
        return served, left_out, await served_by(dispatcher, step(uids[3]), NORMAL)

    served, left_out, later = asyncio.run(ask())
    assert served != uids[3]
    assert left_out == {uids[3]}
    assert later != uids[3]


def test_an_answer_whose_engine_is_lost_is_an_error_that_says_so(
    engine: Any, uids: list[str]
) -> None:
    with pytest.raises(EngineError, match="lost while it answered") as caught:
        asyncio.run(served_by(Dispatcher(engine), step(uids[3]), GONE_BEHIND))
    assert caught.value.code == REPLICA_LOST


def test_closing_the_stream_aborts_the_request_in_the_engine(engine: Any, uids: list[str]) -> None:
    async def close_early() -> list[str]:
        stream = Dispatcher(engine).stream(step(uids[1]), request(LONG, "closed"))
        async with aclosing(stream):
            await anext(stream)
        for _ in range(50):
            await asyncio.sleep(0.1)
            aborted = [
                name for _, names in await engine.broadcast("who").results_async() for name in names
            ]
            if "closed" in aborted:
                return aborted
        return []

    assert "closed" in asyncio.run(close_early())


def test_a_full_queue_is_overload(engine: Any) -> None:
    async def flood() -> list[Any]:
        dispatcher = Dispatcher(engine.options())
        calls = [served_by(dispatcher, None) for _ in range(200 + SLOTS * REPLICAS + 150)]
        return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(flood())
    refused = [r for r in results if isinstance(r, Overloaded)]
    assert refused
    assert all(isinstance(r, str | Overloaded) for r in results)
    assert refused[0].status == 503


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
