"""IndexJournal: what the index learns goes to Redis, and comes back when the index restarts.

Written: requests that ended well, a moment after they did; now and then all of them, as a
snapshot. Whatever was not written is forgotten, and whatever was is doubted until the replica's
own dump (`core/kept.py`): a lost, late or repeated message costs reuse, never a wrong prediction.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from ray.exceptions import RayError

from cp_ray.core.index import ContextIndex
from cp_ray.core.kept import Batch, Packer, Recaller, kept
from cp_ray.core.types import RequestId
from cp_ray.errors import CpRayError, WireError
from cp_ray.store import wire
from cp_ray.store.client import Store
from cp_ray.store.journal import Journal

FLUSH_S = 0.1
SLICE = 250
"""Requests handled in one go: some 10 ms in which nothing is planned."""
MAX_WAITING = 65_536
"""Requests that may wait while Redis is down; the snapshot that follows has them all."""
SNAPSHOT_AT_LEAST = 5_000
"""A snapshot comes after so many requests written (or as many as the index remembers at most, if
that is less), or after half the records, if that is more."""
KEEP_S = 5.0
"""Between two looks at the keys, which would expire: also while traffic never pauses."""
SETTLE_S = 10.0
"""After a recovery the replicas' dumps come before the next snapshot."""
LIVE_PATIENCE_S = 10.0
"""How long a restarted index waits for Serve to say which replicas there are."""
MAX_BACKOFF_S = 5.0
_log = logging.getLogger("ray.serve")
T = TypeVar("T")


class IndexJournal:
    """One for each index actor. `run` first recovers, then writes for ever.

    connect: opens the store. live: returns once the index knows its replicas. recovered: called
    when all records are back, and only the replicas' dumps are missing. recovering: records
    are coming back, so that a dump would come too early. seconds, cpu_s: how long that took, and
    what this process computed meanwhile.
    """

    def __init__(
        self,
        index: ContextIndex,
        connect: Callable[[], Awaitable[Store]],
        live: Callable[[], Awaitable[None]],
        recovered: Callable[[], Awaitable[None]],
    ) -> None:
        self._index = index
        self._connect = connect
        self._live = live
        self._recovered = recovered
        self._packer = Packer()
        self._waiting: list[RequestId] = []
        self._work = asyncio.Event()
        self._written = 0
        self._snapshot_at: float | None = None
        self._kept_at = time.monotonic()
        self._counters: Counter[str] = Counter()
        self.recovering = False
        self.seconds = self.cpu_s = 0.0

    def counters(self) -> dict[str, int]:
        """Of this incarnation: requests recalled and journaled, snapshots, what went wrong."""
        names = ("recalled", "journaled", "journal_unreadable", "snapshots", "journal_faults")
        return {name: self._counters[name] for name in names}

    def fill(self) -> tuple[int, int]:
        """Requests in the journal behind its snapshot, and the most there can be."""
        return self._written, self._longest()

    def ended(self, request: RequestId) -> None:
        """The request ended well: keep it."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(request)
            self._work.set()

    async def run(self) -> None:
        """Recover, then write for ever. While Redis is down, wait; a snapshot makes up for it."""
        store = await self._retried(self._connect)
        journal = await self._retried(lambda: self._recover(store))
        while True:
            await self._retried(lambda: self._write(journal))

    async def _retried(self, work: Callable[[], Awaitable[T]]) -> T:
        """Until it succeeds: whatever fails with Redis is tried again."""
        backoff_s = 0.1
        while True:
            try:
                return await work()
            except (CpRayError, RayError) as error:  # RayError: the embedded server's actor
                self._counters["journal_faults"] += 1
                self._snapshot_at = time.monotonic()  # what was on its way may be lost
                self._packer = Packer()  # and with it names that later messages would rely on
                _log.warning("The index's journal cannot be kept for now: %s", error)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _recover(self, store: Store) -> Journal:
        """All of it again when it fails half-way: what is known already is left out."""
        began, cpu_began_s = time.monotonic(), time.process_time()
        journal = await store.journal()
        recaller = Recaller(self._index)
        gc.disable()  # millions of new objects that stay: each pass over them finds nothing
        try:
            async for message in journal.load():
                if not self.recovering:  # a fresh start has nothing to read, and waits for nobody
                    self.recovering = True
                    await self._wait_for_live()
                try:
                    batch = wire.decode(message, Batch)
                    self._counters["recalled"] += recaller.recall(batch)
                except WireError:
                    self._counters["journal_unreadable"] += 1
                await asyncio.sleep(0)
        finally:
            self.recovering = False
            gc.enable()
        await self._recovered()
        self.seconds = time.monotonic() - began
        self.cpu_s = time.process_time() - cpu_began_s
        settled = SETTLE_S if self._counters["recalled"] else 0.0
        self._snapshot_at = time.monotonic() + settled
        return journal

    async def _wait_for_live(self) -> None:
        try:
            async with asyncio.timeout(LIVE_PATIENCE_S):
                await self._live()
        except TimeoutError:
            _log.warning("No engine replica is known: what the index knew of them is forgotten.")

    async def _write(self, journal: Journal) -> None:
        """One round: what waits, or a snapshot when one is due."""
        if self._snapshot_at is not None and time.monotonic() >= self._snapshot_at:
            await self._snapshot(journal)
        if time.monotonic() - self._kept_at >= KEEP_S:
            await self._keep(journal)
        try:
            async with asyncio.timeout(KEEP_S):
                await self._work.wait()
                await asyncio.sleep(FLUSH_S)
        except TimeoutError:
            return
        await self._flush(journal)
        if self._written >= self._longest():
            self._snapshot_at = time.monotonic()

    async def _keep(self, journal: Journal) -> None:
        self._kept_at = time.monotonic()
        if not await journal.keep() and self._snapshot_at is None:
            self._snapshot_at = self._kept_at

    def _longest(self) -> int:
        least = min(SNAPSHOT_AT_LEAST, self._index.max_records)
        return max(least, len(self._index.memory.records) // 2)

    async def _flush(self, journal: Journal) -> None:
        self._work.clear()
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), SLICE):
            message = self._message(self._packer, waiting[start : start + SLICE])
            if message is not None:
                await journal.append(message)
        self._written += len(waiting)
        self._counters["journaled"] += len(waiting)

    async def _snapshot(self, journal: Journal) -> None:
        self._counters["journaled"] += len(self._waiting)
        self._waiting.clear()  # the snapshot has them
        self._snapshot_at, self._written = None, 0
        self._packer = Packer()  # the journal is read from here on
        await journal.snapshot(self._all())
        self._counters["snapshots"] += 1

    async def _all(self) -> AsyncIterator[bytes]:
        requests, packer = list(self._index.memory.records), Packer()
        for start in range(0, len(requests), SLICE):
            message = self._message(packer, requests[start : start + SLICE])
            if message is not None:
                yield message
            await asyncio.sleep(0)

    def _message(self, packer: Packer, requests: list[RequestId]) -> bytes | None:
        entries = [entry for entry in (kept(self._index, r) for r in requests) if entry is not None]
        return wire.encode(packer.pack(entries)) if entries else None
