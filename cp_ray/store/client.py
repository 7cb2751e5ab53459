"""Store: two streams of messages, the conversation records and the index's journal in Redis.

Keys: `cp:{app}:reports` (engines to index) and `cp:{app}:dump_requests` (index to engines), both
streams with the field `p`; `cp:{app}:record:{key}` (bytes, with a TTL); the journal's are told in
`store/journal.py`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import redis.asyncio as aioredis

from cp_ray.errors import ConfigError
from cp_ray.store.connection import FAULTS, check_server, faults_as_unavailable, open_client
from cp_ray.store.journal import Journal

CALL_TIMEOUT_S = 1.0
MAX_REPORTS = 100_000
"""Length of the report stream, about, where nothing else is set."""
MAX_DUMP_REQUESTS = 1_000
"""Length of the other stream: a request nobody read in time is repeated."""
START = "0-0"
"""Id before every report."""

_APP = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Store:
    """Client of one Redis or Valkey server, for one event loop.

    Reconnects by itself. Every call but a blocking read ends within 1 s; when Redis is down, late
    or full it raises StoreUnavailable.
    """

    def __init__(self, url: str, app: str, max_reports: int = MAX_REPORTS) -> None:
        self._url = url
        self._max_reports = max_reports
        self._prefix = f"cp:{app}:"
        self._reports = f"{self._prefix}reports"
        self._dump_requests = f"{self._prefix}dump_requests"
        self._client: aioredis.Redis = open_client(url)
        # A blocked read occupies its connection: records must not wait behind it.
        self._reader: aioredis.Redis = open_client(url, blocking=True)

    @classmethod
    async def connect(cls, url: str, app: str = "cp", *, max_reports: int = MAX_REPORTS) -> Self:
        """Connect and prove the rights needed.

        app: name of the Serve application; applications on one server do not see each other.
        max_reports: about so long is the stream of those who append to it; a reader further behind
        sees a gap. Raises ConfigError, with what to do, when the server cannot be used.
        """
        if not _APP.fullmatch(app):
            raise ConfigError(
                f"application name {app!r}: use 1 to 64 letters, digits, '_', '.' or '-'",
                param="app",
            )
        store = cls(url, app, max_reports)
        try:
            await check_server(store._client, url, app)
        except BaseException:
            await store.close()
            raise
        return store

    async def append_report(self, payload: bytes) -> str:
        """Append one message to the report stream; returns its id.

        After a lost connection it may be appended twice: its sequence number tells.
        """
        return await self._append(self._reports, payload, self._max_reports)

    async def append_dump_request(self, payload: bytes) -> str:
        """Append one message to the stream that every replica reads; returns its id."""
        return await self._append(self._dump_requests, payload, MAX_DUMP_REQUESTS)

    async def read_reports(
        self, after: str, block_ms: int, count: int = 512
    ) -> list[tuple[str, bytes]]:
        """Messages after id `after`, oldest first, at most `count`; waits `block_ms` for the first.

        Pass the last id returned to resume. When the stream lies wholly before `after` (the
        server lost its data and its clock went back) it is read from its beginning.
        """
        return await self._read_on(self._reports, after, block_ms, count)

    async def read_dump_requests(self, after: str, block_ms: int) -> list[tuple[str, bytes]]:
        """The same for the other stream."""
        return await self._read_on(self._dump_requests, after, block_ms, MAX_DUMP_REQUESTS)

    async def reports_tail(self) -> str:
        """Return the id of the last message, or `START`."""
        return await self._tail(self._reports)

    async def count_reports(self) -> int:
        """Messages in the report stream now."""
        return int(await self._bounded(self._client.xlen(self._reports)))

    async def dump_requests_tail(self) -> str:
        """The same for the other stream."""
        return await self._tail(self._dump_requests)

    async def get_record(self, key: str) -> bytes | None:
        """Read the record: None when there is none or it expired."""
        value: bytes | None = await self._bounded(self._client.get(f"{self._prefix}record:{key}"))
        return value

    async def put_record(self, key: str, value: bytes, ttl_s: int) -> None:
        """Write the record; it expires `ttl_s` seconds from now."""
        await self._bounded(self._client.set(f"{self._prefix}record:{key}", value, ex=ttl_s))

    async def get_records(self, keys: Sequence[str], ttl_s: int) -> list[bytes | None]:
        """Read several records; each found expires `ttl_s` seconds from now."""
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.getex(f"{self._prefix}record:{key}", ex=ttl_s)
        values: list[bytes | None] = await self._bounded(pipe.execute())
        return values

    async def put_records(self, values: Mapping[str, bytes], ttl_s: int) -> None:
        """Write several records, in order; they expire `ttl_s` seconds from now."""
        pipe = self._client.pipeline(transaction=False)
        for key, value in values.items():
            pipe.set(f"{self._prefix}record:{key}", value, ex=ttl_s)
        await self._bounded(pipe.execute())

    async def count_keys(self) -> int:
        """Keys of this application; may take long on a large server."""
        count = 0
        async for _ in self._client.scan_iter(f"{self._prefix}*", count=1000):
            count += 1
        return count

    async def journal(self) -> Journal:
        """Begin a new incarnation of the index's journal."""
        return await Journal.open(self._client, self._bounded, self._prefix)

    async def close(self) -> None:
        """Close all connections; a second call does nothing. Never raises."""
        for client in (self._client, self._reader):
            with suppress(*FAULTS):  # a server that is late for the goodbye, too, is left
                await client.aclose(close_connection_pool=True)

    async def _append(self, stream: str, payload: bytes, longest: int) -> str:
        call = self._client.xadd(stream, {b"p": payload}, maxlen=longest, approximate=True)
        return _text(await self._bounded(call))

    async def _tail(self, stream: str) -> str:
        entries = await self._bounded(self._client.xrevrange(stream, count=1))
        return _text(entries[0][0]) if entries else START

    async def _read_on(
        self, stream: str, after: str, block_ms: int, count: int
    ) -> list[tuple[str, bytes]]:
        messages = await self._read(stream, after, block_ms, count)
        if not messages:
            tail = await self._tail(stream)
            if tail != START and _order(tail) < _order(after):
                messages = await self._read(stream, START, 0, count)
        return messages

    async def _read(
        self, stream: str, after: str, block_ms: int, count: int
    ) -> list[tuple[str, bytes]]:
        # To Redis, BLOCK 0 means for ever; here it means not to wait.
        call = self._reader.xread(
            {stream: after}, count=count, block=block_ms if block_ms > 0 else None
        )
        reply = await self._bounded(call, extra_s=max(block_ms, 0) / 1000)
        streams = reply.items() if isinstance(reply, dict) else reply or ()
        return [
            (_text(id_), fields[b"p"])
            for _, entries in streams
            for id_, fields in entries
            if b"p" in fields
        ]

    async def _bounded(self, call: Any, extra_s: float = 0.0) -> Any:
        async with faults_as_unavailable(self._url), asyncio.timeout(CALL_TIMEOUT_S + extra_s):
            return await call


def _text(id_: bytes | str) -> str:
    return id_.decode() if isinstance(id_, bytes) else id_


def _order(id_: str) -> tuple[int, int]:
    milliseconds, _, number = id_.partition("-")
    return int(milliseconds), int(number or 0)
