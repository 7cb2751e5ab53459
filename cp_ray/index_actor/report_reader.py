"""Report reader: reports and dumps from the Redis stream into the index; dump requests out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from ray.exceptions import RayError

from cp_ray.core.types import DumpRequest, ReplicaMessage
from cp_ray.errors import CpRayError, WireError
from cp_ray.store import wire
from cp_ray.store.client import Store

BLOCK_MS = 1000
MAX_BACKOFF_S = 2.0
_log = logging.getLogger("ray.serve")


class ReportReader:
    """Reads from the stream's tail at start; while Redis is down it waits and resumes.

    connect: opens the store. apply, dump_requests: of ContextIndex. lag_s: age of the newest
    report when it was applied, by Redis' clock against ours.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Store]],
        apply: Callable[[ReplicaMessage], object],
        dump_requests: Callable[[float], Iterable[DumpRequest]],
    ) -> None:
        self._connect = connect
        self._apply = apply
        self._dump_requests = dump_requests
        self._after: str | None = None
        self._store: Store | None = None
        self._counters: Counter[str] = Counter()
        self.connected = False
        self.lag_s = 0.0

    def counters(self) -> dict[str, int]:
        """reports_read, reports_undecodable, dumps_asked, redis_faults since the start."""
        names = ("reports_read", "reports_undecodable", "dumps_asked", "redis_faults")
        return {name: self._counters[name] for name in names}

    async def ask(self) -> None:
        """Ask now for the dumps that are due; where that fails, `run` asks a second later."""
        if self._store is not None:
            with suppress(CpRayError):
                await self._ask(self._store)

    async def reports(self) -> int:
        """Messages in the stream now; 0 while Redis is away."""
        return 0 if self._store is None else await self._store.count_reports()

    async def run(self) -> None:
        """Read for ever."""
        backoff_s = 0.1
        while True:
            try:
                store = await self._connect()
                try:
                    self._after = self._after or await store.reports_tail()
                    self.connected = True
                    self._store = store
                    backoff_s = 0.1
                    while True:
                        await self._read(store, self._after)
                        await self._ask(store)
                finally:
                    self.connected = False
                    self._store = None
                    await store.close()
            except (CpRayError, RayError) as error:  # RayError: the embedded server's actor
                self._counters["redis_faults"] += 1
                _log.warning("No eviction reports for now: %s", error)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _read(self, store: Store, after: str) -> None:
        for id_, payload in await store.read_reports(after, BLOCK_MS):
            self._after = id_
            self._counters["reports_read"] += 1
            self.lag_s = max(0.0, time.time() - int(id_.partition("-")[0]) / 1000)
            try:
                message = wire.decode(payload, ReplicaMessage)
            except WireError:
                # Its replica is unknown; the replica's next report will not join on: a gap.
                self._counters["reports_undecodable"] += 1
                continue
            self._apply(message)

    async def _ask(self, store: Store) -> None:
        for request in self._dump_requests(time.monotonic()):
            await store.append_dump_request(wire.encode(request))
            self._counters["dumps_asked"] += 1
