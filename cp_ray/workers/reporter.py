"""Reporter: an engine's evictions, batched and numbered, on their way to the index.

The engine's loop only ever adds to a dictionary; sending, waiting and retrying happen in `run`.
Every doubt becomes a new epoch, and a new epoch is always announced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cp_ray.core.types import Eviction, EvictionReport, ReplicaId, RequestId
from cp_ray.store import wire

log = logging.getLogger("ray.serve")

MAX_AGE_S = 0.02
MAX_EVICTIONS = 512
"""Evictions of one report."""
MAX_WAITING = 65_536
"""Requests that may wait while nothing can be sent; one more is a new epoch."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0


class Reporter:
    """CacheListener of one replica. Epoch 0 is the one the index gives a replica that joins.

    send: delivers one wire-encoded EvictionReport, or raises; then it is called again, though it
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

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self._work.wait()
            await self._more_or_old_enough()
            report = self._next()
            backoff_s = MIN_BACKOFF_S
            while report.epoch == self._epoch and not await self._sent(report):
                await self._sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _more_or_old_enough(self) -> None:
        waits = {
            asyncio.ensure_future(self._full.wait()),
            asyncio.ensure_future(self._sleep(MAX_AGE_S)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _next(self) -> EvictionReport:
        requests = list(self._waiting)[: self._max_evictions]
        evicted = tuple(Eviction(request, self._waiting.pop(request)) for request in requests)
        report = EvictionReport(self._replica, self._epoch, self._seq, evicted)
        self._seq += 1
        if len(self._waiting) < self._max_evictions:
            self._full.clear()
        if not self._waiting:
            self._work.clear()
        return report

    async def _sent(self, report: EvictionReport) -> bool:
        try:
            await self._send(wire.encode(report))
        except Exception as error:  # noqa: BLE001 - whatever is wrong on the way, serving goes on
            log.warning("Eviction report not sent, trying again: %s", error)
            return False
        return True
