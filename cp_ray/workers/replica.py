"""EngineReplica: one engine under Ray Serve. The engine answers, the reporter reports."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from ray import serve
from ray.exceptions import RayError

from cp_ray.allocator import keep_trimmed
from cp_ray.config import AppConfig
from cp_ray.core.types import DumpRequest, ReplicaId
from cp_ray.errors import EngineError, EngineUnavailable
from cp_ray.store import wire
from cp_ray.store.client import Store
from cp_ray.store.embedded_actor import redis_url
from cp_ray.tracing import new_tracer
from cp_ray.workers.asked import AskedRates
from cp_ray.workers.dump_requests import DumpRequests
from cp_ray.workers.engine import Chunk, Delivery, Engine, EngineRequest
from cp_ray.workers.engine_watch import EngineWatch
from cp_ray.workers.reporter import Reporter
from cp_ray.workers.spans import traced

log = logging.getLogger("ray.serve")

DELIVERY_S = 0.02
"""After the first token, chunks go out together: each message costs about 2 ms of CPU."""


class EngineReplica:
    """One engine under Serve."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]
        """Load the engine; Serve counts the replica as running when this returns.

        config_json: `AppConfig.to_json()`. Raises ConfigError.
        """
        self._config = AppConfig.model_validate_json(config_json)
        context = serve.get_replica_context()
        self._replica = ReplicaId(context.replica_id.unique_id)
        self._app = context.app_name
        self._tracer = new_tracer(self._config, self._app, "replica", self._replica)
        self._asked = AskedRates(time.monotonic())
        self._store: Store | None = None
        self._connecting = asyncio.Lock()
        await self._find_redis()
        self._engine = make_engine(self._config)
        self._watch = EngineWatch(
            self._engine.ping,
            end_children,
            ask_after_s=self._config.health_check_period_s,
            answer_s=self._config.health_check_timeout_s,
        )
        self._reporter = Reporter(self._replica, self._send)
        self._info = await self._engine.start(self._reporter)
        asked = DumpRequests(self._replica, self._connect, self._answer)
        self._tasks = [
            asyncio.create_task(self._reporter.run(), name="eviction-reports"),
            asyncio.create_task(asked.run(), name="dump-requests"),
            asyncio.create_task(self._watch.run(), name="engine-watch"),
        ]
        self._trimming = asyncio.create_task(keep_trimmed())  # ends at once where there is no glibc

    async def generate(
        self,
        payload: bytes,
        cp_plan: dict[str, Any] | None = None,  # noqa: ARG002 - the request router reads it
    ) -> AsyncGenerator[bytes, None]:
        """Wire-encoded EngineRequest -> wire-encoded Deliveries.

        When the caller goes away Serve cancels this generator, and the engine aborts.
        """
        async with aclosing(self.deliveries(wire.decode(payload, EngineRequest))) as stream:
            async for delivery in stream:
                yield wire.encode(delivery)

    async def deliveries(self, request: EngineRequest) -> AsyncGenerator[Delivery, None]:
        """As `generate`, for a caller of this process."""
        self._asked.count(request)
        chunks = self._watch.watched(self._engine.generate(request))
        if request.traceparent is not None:
            chunks = traced(self._tracer, self._replica, request, chunks)
        async with aclosing(deliveries(self._replica, chunks)) as stream:
            async for delivery in stream:
                yield delivery

    async def info(self) -> bytes:
        """Wire-encoded EngineInfo."""
        return wire.encode(self._info)

    async def held(self) -> bytes:
        """Wire-encoded: of this replica the requests it follows, and their tokens left."""
        return wire.encode({self._replica: self._engine.held()})

    async def fills(self) -> dict[str, tuple[int, int]]:
        """What traffic fills: requests followed, and the most there can be."""
        return {"requests followed": (len(self._engine.held()), self._config.followed_requests)}

    async def reset_cache(self) -> None:
        """Drop the engine's prefix cache; the index hears of a new epoch."""
        await self._engine.reset_cache()

    async def check_health(self) -> None:
        """Raise when the engine died or hangs, or a task of ours ended: Serve replaces us."""
        for task in self._tasks:
            if task.done():
                raise EngineError(f"the replica's task {task.get_name()} has ended")
        self._watch.check()
        await self._engine.check_health()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What was asked since Serve's last question, a second; only a fleet that scales is asked.

        `cp_ray/autoscaling.py` reads it in Serve's controller.
        """
        return self._asked.rates(time.monotonic())

    def record_replica_metadata(self) -> dict[str, Any]:
        """Facts the routers and the index get from Serve together with the live set."""
        return {
            "page_size": self._info.page_size,
            "capacity_tokens": self._info.capacity_tokens,
            "step_tokens": self._info.step_tokens,
            "max_model_len": self._info.max_model_len,
            "engine": self._info.engine,
            "simulated": self._info.simulated,
        }

    async def __del__(self) -> None:
        """Serve awaits this when it stops the replica, one that failed to start included."""
        for task in (*getattr(self, "_tasks", ()), getattr(self, "_trimming", None)):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        engine: Engine | None = getattr(self, "_engine", None)
        if engine is not None:
            await engine.close()
        if self._store is not None:
            await self._store.close()
        if (tracer := getattr(self, "_tracer", None)) is not None:
            await tracer.close()

    async def _find_redis(self) -> None:
        """Raise ConfigError on a host that could never report: its evictions would be ghosts."""
        try:
            await redis_url(self._config, self._app)
        except RayError as error:  # down for now: reports wait for it
            log.warning("No Redis to report to yet: %s", error)

    async def _send(self, message: bytes) -> None:
        await (await self._connect()).append_report(message)

    async def _answer(self, request: DumpRequest) -> None:
        """A view of the engine that proved wrong cannot be dumped: the cache begins anew."""
        if request.rebuild:
            await self._engine.reset_cache()
        else:
            self._reporter.dump(self._engine.held)

    async def _connect(self) -> Store:
        """The store. Redis may come up after us: connect when it is needed."""
        async with self._connecting:
            if self._store is None:
                try:
                    url = await redis_url(self._config, self._app)
                except RayError as error:  # the embedded server's actor
                    raise EngineUnavailable(f"no Redis to report to: {error}") from error
                most = self._config.reports_kept
                self._store = await Store.connect(url, self._app, max_reports=most)
            return self._store


async def deliveries(
    replica: ReplicaId, chunks: AsyncGenerator[Chunk, None]
) -> AsyncGenerator[Delivery, None]:
    """The first chunk at once, then those of DELIVERY_S together, and the rest at the end."""
    waiting: list[Chunk] = []
    sent_at = float("-inf")
    async with aclosing(chunks) as coming:
        async for chunk in coming:
            waiting.append(chunk)
            now = time.monotonic()
            if now - sent_at >= DELIVERY_S or chunk.finish_reason is not None:
                yield Delivery(replica, waiting)
                waiting, sent_at = [], now
    if waiting:
        yield Delivery(replica, waiting)


def end_children() -> None:
    """Kill the processes of an engine that hangs: Serve ends only their parent, not what they hold.

    All children of a replica are its engine's.
    """
    for child in multiprocessing.active_children():
        child.kill()


def make_engine(config: AppConfig) -> Engine:
    """The engine that the settings name."""
    if config.engine == "simulated":
        from cp_ray.workers.simulated_engine import SimulatedEngine

        return SimulatedEngine(config)
    if config.engine == "sglang":
        from cp_ray.workers.sglang_engine import SglangEngine

        return SglangEngine(config)
    from cp_ray.workers.vllm_engine import VllmEngine

    return VllmEngine(config)
