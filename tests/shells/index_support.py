"""Stand-ins for engines, and a client of the index actor beside them, on real Ray and Serve."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray import cloudpickle, serve

from cp_ray.config import AppConfig
from cp_ray.core.types import BlockId, HeadId, PlanRequest, RequestId
from cp_ray.index_actor.client import IndexClient

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CONFIG = AppConfig(engine="simulated", plan_deadline_ms=400)
PAGE = 16


class StandIn:
    """What the index needs of an engine replica: its facts, and a process to kill."""

    def record_replica_metadata(self) -> dict[str, int]:
        return {"page_size": PAGE, "capacity_tokens": 100_000}

    async def pid(self) -> tuple[str, int]:
        return serve.get_replica_context().replica_tag, os.getpid()


@contextmanager
def application(name: str) -> Iterator[Any]:
    """Two stand-ins, behind the handle that is given."""
    deployment = serve.deployment(StandIn).options(
        name="Engine",
        num_replicas=2,
        health_check_period_s=0.5,
        ray_actor_options={"num_cpus": 0.1},
    )
    yield serve.run(deployment.bind(), name=name, route_prefix=f"/{name}")
    serve.delete(name)


def plan_request(name: str, *blocks: str, head: str = "h") -> PlanRequest:
    context = tuple(BlockId(block) for block in blocks)
    return PlanRequest(RequestId(name), HeadId(head), 32, context, (160,) * len(context), 8)


def run(app: str, test: Callable[[IndexClient], Awaitable[None]]) -> None:
    """The test with a client of the application that sees both stand-ins."""

    async def main() -> None:
        client = IndexClient(app, CONFIG)
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


async def equals(client: IndexClient, name: str, value: int) -> bool:
    return await counter(client, name) == value


async def is_none(client: IndexClient) -> bool:
    return await client.plan([plan_request(f"n{time.monotonic_ns()}", "a")]) is None


async def index_pid(client: IndexClient) -> int:
    state = await client.state()
    assert state is not None
    return int(state["pid"])
