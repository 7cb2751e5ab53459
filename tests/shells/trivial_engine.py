"""An engine deployment that answers with its process id, to route to and to kill."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import cloudpickle, serve
from ray.serve.config import RequestRouterConfig

from cp_ray.core.packed import packed
from cp_ray.core.types import ReplicaId, RequestId, Step
from cp_ray.errors import EngineGone, InvalidRequest
from cp_ray.router.dispatch import Dispatcher
from cp_ray.router.liveness import Liveness
from cp_ray.router.request_router import PlannedReplicaRouter
from cp_ray.store import wire
from cp_ray.workers.engine import Chunk, Delivery, EngineRequest, Sampling

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SLOTS = 8
REPLICAS = 4
NORMAL, REFUSE, BUG, DIE_ON_PLAN, LONG, BUSY, GONE_ON_PLAN, GONE_BEHIND = range(8)


class TrivialEngine:
    """Answers with its process id; the prompt's first token says how."""

    def __init__(self) -> None:
        self.uid = serve.get_replica_context().replica_tag
        self.aborted: list[str] = []

    async def generate(
        self, payload: bytes, cp_plan: dict[str, Any] | None = None
    ) -> AsyncIterator[bytes]:
        request = wire.decode(payload, EngineRequest)
        how = request.tokens[0]
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


class Parent:
    """Makes many engine calls within one request, as Chain-of-Agents does."""

    def __init__(self, engine: Any) -> None:
        self.dispatcher = Dispatcher(engine)

    async def fan_out(self, steps: list[Step | None]) -> list[str]:
        return list(await asyncio.gather(*(served_by(self.dispatcher, s) for s in steps)))


def request(how: int = NORMAL, name: str = "r") -> EngineRequest:
    return EngineRequest(RequestId(name), packed([how, 1, 2]), Sampling())


def step(replica: str | None, branch: str = "b/0") -> Step:
    planned = ReplicaId(replica) if replica else None
    return Step(RequestId("r"), (), planned, branch, (0,), 0, "holder")


async def served_by(dispatcher: Dispatcher, plan: Step | None, how: int = NORMAL) -> str:
    deliveries = [d async for d in dispatcher.stream(plan, request(how))]
    return deliveries[0].replica


@contextmanager
def routed(name: str) -> Iterator[Any]:
    """The application of a Parent and its engines, routed as planned."""
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
    yield serve.run(parent.bind(engine.bind()), name=name, route_prefix=f"/{name}")
    serve.delete(name)


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


def patient(engine: Any) -> Dispatcher:
    """Asks after 0.2 s of silence, and gives 0.5 s for the answer."""
    return Dispatcher(engine, Liveness(engine, ask_after_s=0.2, answer_s=0.5))
