"""The soak's control: bare replicas of Ray Serve, asked as often as the engines, that keep nothing.

Ray and Serve keep something of each call of a replica for ever (about 70 bytes with Ray 2.60:
benchmarks/LOG.md). What the engines grow by beyond that is this application's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from ray import serve
from ray.serve.schema import LoggingConfig

from cp_ray.workers.replica import DELIVERY_S

NAME = "bare"
DELIVERIES = 3
"""First token, some tokens, the end: what the soak's answers come in."""
PAYLOAD = bytes(2000)
"""As large as the soak's engine requests."""


class Bare:
    """Answers as an engine replica does, without an engine."""

    async def generate(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        """Some bytes, DELIVERIES times."""
        for _ in range(DELIVERIES):
            await asyncio.sleep(DELIVERY_S)
            yield payload[:100]


def start_control(replicas: int) -> None:
    """Deploy it, with the engines' options that matter to a call."""
    bare: Any = serve.deployment(Bare).options(
        name="Engine",
        num_replicas=replicas,
        max_ongoing_requests=1000,
        logging_config=LoggingConfig(enable_access_log=False),
        ray_actor_options={"num_cpus": 0.1},
    )
    serve.run(bare.bind(), name=NAME, route_prefix=None)


def control() -> Callable[[], Awaitable[None]]:
    """One call of a bare replica, to its end."""
    handle = serve.get_deployment_handle("Engine", NAME)
    streams = handle.options(stream=True, method_name="generate")

    async def call() -> None:
        async for _ in streams.remote(PAYLOAD):
            pass

    return call
