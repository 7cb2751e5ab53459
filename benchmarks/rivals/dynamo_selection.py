"""Dynamo's own SelectionService: its block index, its load tracker and its cost, by its defaults.

It is asked as Ray's alpha KVAwareRouter asks it (`select_and_reserve`, `prefill_complete`,
`free_reservation`), and hears each replica's KV events over ZMQ as from vLLM. Events of a moment
are in its index before the next question: better than any network.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from benchmarks.rivals.block_events import BLOCK, Publisher
from benchmarks.rivals.prompts import Encode, token_ids
from cp_ray.core.types import Eviction
from cp_ray.replay.fleet.batching import STEP_TOKENS
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.view import FleetView

START_S = 20.0
PATIENCE_S = 600.0
"""Of a step that takes milliseconds: whoever stops this process for a while breaks nothing."""
Result = TypeVar("Result")
NAMES = {"model_name": "default", "tenant_id": "default"}


class DynamoSelection:
    """Worker ids are replica numbers."""

    def __init__(self, replicas: int, encode: Encode) -> None:
        self._encode = encode
        os.environ.setdefault("DYN_LOG", "error")
        from dynamo.llm import SelectionService
        from zmq.sugar.context import Context

        self._loop = asyncio.new_event_loop()
        self._context: Any = Context()
        self._engines = [Publisher(self._context, at) for at in range(replicas)]
        self._service = self._run(self._start(SelectionService))

    async def _start(self, service_class: Any) -> Any:
        service = service_class(indexer_threads=1)
        for at, engine in enumerate(self._engines):
            worker = {
                **NAMES,
                "worker_id": at,
                "endpoint": f"simulated://{at}",
                "block_size": BLOCK,
                "max_num_batched_tokens": STEP_TOKENS,
                "data_parallel_start_rank": 0,
                "data_parallel_size": 1,
                "kv_events_endpoints": {0: engine.endpoint},
            }
            await service.upsert_worker(worker)
        for engine in self._engines:
            engine.wait_for_subscriber(START_S)
        return service

    def choose(self, live: Live, view: FleetView) -> int:  # noqa: ARG002
        return self._run(self._choose(live))

    async def _choose(self, live: Live) -> int:
        await self._catch_up()
        request = {
            **NAMES,
            "selection_id": live.request_id,
            "token_ids": self._encode(live.pieces),
            "allowed_worker_ids": list(range(len(self._engines))),
        }
        chosen = await self._service.select_and_reserve(request)
        return int(chosen["worker_id"])

    async def _catch_up(self) -> None:
        """Send the engines' events and wait until they are in the index."""
        for at, engine in enumerate(self._engines):
            probe = engine.send()
            while probe and not await self._overlap(probe, at):  # noqa: ASYNC110 - it tells no one
                await asyncio.sleep(0)

    async def _overlap(self, tokens: list[int], replica: int) -> int:
        """Blocks of the prompt that it takes the replica to hold."""
        scores = await self._service.overlap_scores({**NAMES, "token_ids": tokens})
        return sum(
            int(worker["device_blocks"])
            for worker in scores["workers"]
            if worker["worker_id"] == replica
        )

    def held(self, tokens: list[int], replica: int) -> int:
        """Tokens of a prompt that the service takes the replica to hold now."""

        async def ask() -> int:
            await self._catch_up()
            return await self._overlap(tokens, replica) * BLOCK

        return self._run(ask())

    def first_token(self, live: Live) -> None:
        self._engines[live.replica].stored(live.request_id, token_ids(live.pieces))
        self._run(self._booked("prefill_complete", live))

    def ended(self, live: Live) -> None:
        self._run(self._booked("free_reservation", live))

    async def _booked(self, what: str, live: Live) -> None:
        # The service makes its futures only where a loop runs.
        await getattr(self._service, what)(live.request_id)

    def evicted(self, replica: int, evictions: Sequence[Eviction]) -> None:
        self._engines[replica].evicted(evictions)

    def close(self) -> None:
        self._service.shutdown()
        for engine in self._engines:
            engine.close()
        self._context.destroy(linger=0)
        self._loop.close()

    def _run(self, awaitable: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(asyncio.wait_for(awaitable, PATIENCE_S))
