"""Dump requests: what the index asks of this replica, from the Redis stream to the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cp_ray.core.types import DumpRequest, ReplicaId
from cp_ray.errors import CpRayError, WireError
from cp_ray.store import wire
from cp_ray.store.client import Store

BLOCK_MS = 2000
MAX_BACKOFF_S = 5.0
log = logging.getLogger("ray.serve")


class DumpRequests:
    """Reads from the stream's tail at start; the index repeats what nobody answered.

    connect: the store, or it raises. answer: hears each request that names `replica`.
    """

    def __init__(
        self,
        replica: ReplicaId,
        connect: Callable[[], Awaitable[Store]],
        answer: Callable[[DumpRequest], Awaitable[None]],
    ) -> None:
        self._replica = replica
        self._connect = connect
        self._answer = answer
        self._after: str | None = None

    async def run(self) -> None:
        """Read for ever; while Redis is down it waits and resumes."""
        backoff_s = 0.1
        while True:
            try:
                store = await self._connect()
                self._after = self._after or await store.dump_requests_tail()
                while True:
                    for id_, payload in await store.read_dump_requests(self._after, BLOCK_MS):
                        self._after = id_
                        await self._take(payload)
                    backoff_s = 0.1
            except CpRayError as error:
                log.warning("Cannot hear dump requests for now: %s", error)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _take(self, payload: bytes) -> None:
        try:
            request = wire.decode(payload, DumpRequest)
        except WireError as error:  # an index of another version: it will forget us instead
            log.warning("A dump request cannot be read: %s", error)
            return
        if request.replica == self._replica:
            await self._answer(request)
