"""The index's journal in Redis: what it learnt, as messages in order, compacted by snapshots.

Each incarnation of the index writes under a number of its own, so one that was believed dead and
wakes up again spoils nothing. `<n>` is that number:

    cp:{app}:incarnation          the last number given
    cp:{app}:journal:<n>          stream of messages, field `p`
    cp:{app}:snapshot:<n>:<k>     list of messages, the k-th snapshot of this incarnation
    cp:{app}:snapshot:<n>         which of them is whole, and where the journal goes on behind it

A snapshot is written while the index goes on: its messages and the journal's may tell the same
thing twice. All keys expire TTL_S after their last writer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import redis.asyncio as aioredis

from cp_ray.errors import WireError
from cp_ray.store import wire

TTL_S = 3600
"""What no index has written for an hour, no engine's cache holds any more."""
CHAIN = 16
"""Incarnations read back until one has a whole snapshot."""
READ = 16
"""Messages read in one call."""
_FIRST = "0-0"


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """The whole snapshot. after: id in the journal behind which all is news."""

    key: str
    after: str


class Journal:
    """One incarnation's journal. Every call raises StoreUnavailable when Redis is down or full.

    bounded: `Store`'s way to call Redis. number: of this incarnation.
    """

    def __init__(
        self,
        client: aioredis.Redis,
        bounded: Callable[[Any], Awaitable[Any]],
        prefix: str,
        number: int,
    ) -> None:
        self._client = client
        self._bounded = bounded
        self._prefix = prefix
        self._stream = f"{prefix}journal:{number}"
        self._snapshots = 0
        self._older: list[str] = []
        self.number = number

    @classmethod
    async def open(
        cls, client: aioredis.Redis, bounded: Callable[[Any], Awaitable[Any]], prefix: str
    ) -> Journal:
        """Begin a new incarnation."""
        number = int(await bounded(client.incr(f"{prefix}incarnation")))
        await bounded(client.expire(f"{prefix}incarnation", TTL_S))
        return cls(client, bounded, prefix, number)

    async def load(self) -> AsyncIterator[bytes]:
        """All that earlier incarnations kept, oldest first; some of it twice."""
        chain: list[tuple[int, _Head | None]] = []
        for number in range(self.number - 1, max(0, self.number - 1 - CHAIN), -1):
            head = await self._head(number)
            chain.append((number, head))
            self._older += [f"{self._prefix}journal:{number}", self._head_key(number)]
            if head is not None:
                self._older.append(head.key)
                break
        for number, head in reversed(chain):
            if head is not None:
                async for message in self._parts(head.key):
                    yield message
            after = _FIRST if head is None else head.after
            async for message in self._entries(f"{self._prefix}journal:{number}", after):
                yield message

    async def append(self, message: bytes) -> None:
        """Add a message."""
        pipe = self._client.pipeline(transaction=False)
        pipe.xadd(self._stream, {b"p": message})
        pipe.expire(self._stream, TTL_S)
        await self._bounded(pipe.execute())

    async def snapshot(self, messages: AsyncIterator[bytes]) -> None:
        """Write a new snapshot, then drop what it replaces, earlier incarnations included."""
        self._snapshots += 1
        key = f"{self._head_key(self.number)}:{self._snapshots}"
        after = await self._tail()
        try:
            async for message in messages:
                pipe = self._client.pipeline(transaction=False)
                pipe.rpush(key, message)
                pipe.expire(key, TTL_S)
                await self._bounded(pipe.execute())
            before = await self._head(self.number)
            head = wire.encode(_Head(key, after))
            await self._bounded(self._client.set(self._head_key(self.number), head, ex=TTL_S))
        except BaseException:
            self._older.append(key)  # half a snapshot: dropped with the next whole one
            raise
        await self._bounded(self._client.xtrim(self._stream, minid=after, approximate=False))
        gone = [*self._older, *([before.key] if before is not None else [])]
        if gone:
            await self._bounded(self._client.delete(*gone))
        self._older.clear()

    async def keep(self) -> bool:
        """Put off the expiry of all keys; False when the snapshot is gone, so Redis lost data."""
        head = await self._head(self.number)
        counter = f"{self._prefix}incarnation"
        if await self._number(counter) < self.number:
            await self._bounded(self._client.set(counter, self.number))
        pipe = self._client.pipeline(transaction=False)
        keys = [counter, self._stream, self._head_key(self.number)]
        for key in [*keys, *([head.key] if head is not None else [])]:
            pipe.expire(key, TTL_S)
        await self._bounded(pipe.execute())
        return head is not None

    async def _number(self, counter: str) -> int:
        return int(await self._bounded(self._client.get(counter)) or 0)

    def _head_key(self, number: int) -> str:
        return f"{self._prefix}snapshot:{number}"

    async def _head(self, number: int) -> _Head | None:
        data = await self._bounded(self._client.get(self._head_key(number)))
        try:
            return wire.decode(data, _Head) if data else None
        except WireError:  # another version's: as if there were none
            return None

    async def _parts(self, key: str) -> AsyncIterator[bytes]:
        start = 0
        while parts := await self._bounded(self._client.lrange(key, start, start + READ - 1)):
            for part in parts:
                yield part
            start += len(parts)

    async def _entries(self, stream: str, after: str) -> AsyncIterator[bytes]:
        while True:
            call = self._client.xrange(stream, min=f"({after}", count=READ)
            entries = await self._bounded(call)
            if not entries:
                return
            for id_, fields in entries:
                after = id_.decode() if isinstance(id_, bytes) else id_
                if b"p" in fields:
                    yield fields[b"p"]

    async def _tail(self) -> str:
        entries = await self._bounded(self._client.xrevrange(self._stream, count=1))
        if not entries:
            return _FIRST
        id_ = entries[0][0]
        return id_.decode() if isinstance(id_, bytes) else str(id_)
