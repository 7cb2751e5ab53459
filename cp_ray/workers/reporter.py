"""Reporter: an engine's evictions, batched and numbered, on their way to the index.

The engine's loop only ever adds to a dictionary; sending, waiting and retrying happen in `run`.
Every doubt becomes a new epoch, and a new epoch is always announced. A dump takes its number
among the reports and stands for all that waited. An idle engine sends an empty report now and
then: a report lost before it then shows as a gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cp_ray.core.types import (
    Dump,
    Eviction,
    EvictionReport,
    ReplicaId,
    ReplicaMessage,
    RequestId,
)
from cp_ray.store import wire

log = logging.getLogger("ray.serve")

MAX_AGE_S = 0.02
HEARTBEAT_S = 3.0
MAX_EVICTIONS = 512
"""Evictions of one report."""
MAX_WAITING = 65_536
"""Requests that may wait while nothing can be sent; one more is a new epoch."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0


class Reporter:
    """CacheListener of one replica. Epoch 0 is the one the index gives a replica that joins.

    send: delivers one wire-encoded ReplicaMessage, or raises; then it is called again, though it
    may have delivered: the number tells. sleep: `asyncio.sleep`, or a test's.
    """

    def __init__(
        self,
        replica: ReplicaId,
        send: Callable[[bytes], Awaitable[object]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        max_waiting: int = MAX_WAITING,
        max_evictions: int = MAX_EVICTIONS,
    ) -> None:
        self._replica = replica
        self._send = send
        self._sleep = sleep
        self._max_waiting = max_waiting
        self._max_evictions = max_evictions
        self._epoch = 0
        self._seq = 0
        self._waiting: dict[RequestId, int] = {}
        self._held: Callable[[], dict[RequestId, int]] | None = None
        self._work = asyncio.Event()
        self._full = asyncio.Event()

    def evicted(self, evictions: list[Eviction]) -> None:
        """Add to what waits; of one request only the smallest rest counts."""
        for request, left in (
            (eviction.request_id, eviction.tokens_left) for eviction in evictions
        ):
            self._waiting[request] = min(left, self._waiting.get(request, left))
        if len(self._waiting) > self._max_waiting:
            log.warning("Eviction reports of %s overflow: a new epoch.", self._replica)
            self.new_epoch()
            return
        if len(self._waiting) >= self._max_evictions:
            self._full.set()
        if self._waiting:
            self._work.set()

    def new_epoch(self) -> None:
        """Drop what waits, it is implied; number from 0 in the next epoch."""
        self._waiting.clear()
        self._epoch += 1
        self._seq = 0
        self._full.set()
        self._work.set()

    def dump(self, held: Callable[[], dict[RequestId, int]]) -> None:
        """Send a dump next. held: what the engine holds, asked when its number is given."""
        self._held = held
        self._full.set()
        self._work.set()

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self._first_of(self._work, HEARTBEAT_S)
            if self._work.is_set():
                await self._first_of(self._full, MAX_AGE_S)
            report = self._next()
            backoff_s = MIN_BACKOFF_S
            while report.epoch == self._epoch and not await self._sent(report):
                await self._sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _first_of(self, event: asyncio.Event, seconds: float) -> None:
        if event.is_set():
            return
        waits = {
            asyncio.ensure_future(event.wait()),
            asyncio.ensure_future(self._sleep(seconds)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _next(self) -> ReplicaMessage:
        report: ReplicaMessage
        if self._held is not None:
            report = Dump(self._replica, self._epoch, self._seq, self._held())
            self._held = None
            self._waiting.clear()
        else:
            requests = list(self._waiting)[: self._max_evictions]
            evicted = tuple(Eviction(request, self._waiting.pop(request)) for request in requests)
            report = EvictionReport(self._replica, self._epoch, self._seq, evicted)
        self._seq += 1
        if len(self._waiting) < self._max_evictions:
            self._full.clear()
        if not self._waiting:
            self._work.clear()
        return report

    async def _sent(self, report: ReplicaMessage) -> bool:
        try:
            await self._send(wire.encode(report))
        except Exception as error:  # noqa: BLE001 - whatever is wrong on the way, serving goes on
            log.warning("Eviction report not sent, trying again: %s", error)
            return False
        return True
