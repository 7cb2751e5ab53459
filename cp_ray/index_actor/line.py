"""A line of its own between a Router and the index on one host: plans in a third of the time.

A call of an actor passes four threads on its way there and back, each with its own queue; a socket
passes none. It is an abstract Unix socket, which leaves no file behind and is in reach of its host
(and network namespace) alone; who calls must know the index's secret, which it tells by Ray. Where
there is no line, or it breaks, calls go by Ray as ever.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import secrets
import struct
import sys
from collections.abc import Callable
from typing import Any, cast

from cp_ray.errors import WireError

Answer = Callable[[bytes, float, bytes], bytes]
"""The actor's `plan`: requests, deadline, heard -> steps."""
_HEAD = struct.Struct("<IIdI")
"""Of a call: length of the rest, its number, deadline, length of what was heard (it comes first).
Number 0 is heard only, and not answered."""
_ANSWER = struct.Struct("<II")
"""Of an answer: length of the rest, number of the call."""
_SECRET_BYTES = 16
MOST_BYTES = 64 << 20
_log = logging.getLogger("ray.serve")


class _Frames(asyncio.Protocol):
    """Cuts a stream into frames; `head` says how long each is."""

    head: struct.Struct

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        size = self.head.size
        while len(self._buffer) >= size:
            length = self.head.unpack_from(self._buffer)[0]
            if length > MOST_BYTES:
                self.close()
                return
            if len(self._buffer) < size + length:
                return
            head = self.head.unpack_from(self._buffer)
            rest = bytes(self._buffer[size : size + length])
            del self._buffer[: size + length]
            self.frame(head, rest)

    def frame(self, head: tuple[Any, ...], rest: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class _Caller(_Frames):
    """The index's end of one line."""

    head = _HEAD

    def __init__(self, secret: bytes, plan: Answer, hear: Callable[[bytes], None]) -> None:
        super().__init__()
        self._secret = secret
        self._plan = plan
        self._hear = hear
        self._known = False

    def data_received(self, data: bytes) -> None:
        if not self._known:
            self._buffer += data
            if len(self._buffer) < _SECRET_BYTES:
                return
            given, data = bytes(self._buffer[:_SECRET_BYTES]), bytes(self._buffer[_SECRET_BYTES:])
            self._buffer.clear()
            self._known = hmac.compare_digest(given, self._secret)
            if not self._known:
                self.close()
                return
        super().data_received(data)

    def frame(self, head: tuple[Any, ...], rest: bytes) -> None:
        _, number, deadline, heard_bytes = head
        heard, payload = rest[:heard_bytes], rest[heard_bytes:]
        try:
            if number:
                answer = self._plan(payload, deadline, heard)
            else:
                self._hear(heard)
                return
        except Exception:  # noqa: BLE001 - whatever it is, the caller finds its line closed, and goes by Ray
            _log.exception("a call by line failed")
            self.close()
            return
        if self.transport is not None:
            self.transport.write(_ANSWER.pack(len(answer), number) + answer)


class Lines:
    """Where the index takes calls by line; opened when somebody asks where that is."""

    def __init__(self, plan: Answer, hear: Callable[[bytes], None]) -> None:
        self._plan = plan
        self._hear = hear
        self._address = f"\0cp-ray-{secrets.token_hex(8)}"
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._server: asyncio.Task[asyncio.Server] | None = None

    async def where(self) -> tuple[str, bytes] | None:
        """Address and secret; None where there are no such sockets."""
        if sys.platform != "linux":
            return None
        if self._server is None:
            loop = asyncio.get_running_loop()
            opening = loop.create_unix_server(
                lambda: _Caller(self._secret, self._plan, self._hear), self._address
            )
            self._server = asyncio.ensure_future(opening)
        await asyncio.shield(self._server)
        return self._address, self._secret


class Line(_Frames):
    """A Router's end. Use `connect`."""

    head = _ANSWER

    def __init__(self, secret: bytes, lost: Callable[[str], None]) -> None:
        super().__init__()
        self._secret = secret
        self._lost = lost
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self.open = self._closed = False

    @classmethod
    async def connect(cls, address: str, secret: bytes, lost: Callable[[str], None]) -> Line | None:
        """None where the index is on another host. lost: told why, when it breaks."""
        loop = asyncio.get_running_loop()
        try:
            _, line = await loop.create_unix_connection(lambda: cls(secret, lost), address)
        except OSError:
            return None
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The secret goes first."""
        super().connection_made(transport)
        cast("asyncio.Transport", transport).write(self._secret)
        self.open = True

    def connection_lost(self, error: Exception | None) -> None:
        """Calls under way fail; who called goes by Ray."""
        self.open = False
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(WireError(f"the line to the index broke: {error!r}"))
        if not self._closed:
            self._lost(f"the line to the index broke: {error!r}")

    def close(self) -> None:
        """It is needed no more."""
        self._closed = True
        super().close()

    async def plan(self, payload: bytes, deadline: float, heard: bytes) -> bytes:
        """The actor's answer. Raises WireError when the line breaks meanwhile."""
        number = next(self._numbers) % (1 << 32) or next(self._numbers)
        call = self._calls[number] = asyncio.get_running_loop().create_future()
        self._send(number, deadline, heard, payload)
        try:
            return await call
        finally:
            self._calls.pop(number, None)

    def hear(self, heard: bytes) -> None:
        """Tell, and wait for nothing."""
        self._send(0, 0.0, heard, b"")

    def frame(self, head: tuple[Any, ...], rest: bytes) -> None:
        """An answer."""
        call = self._calls.get(head[1])
        if call is not None and not call.done():
            call.set_result(rest)

    def _send(self, number: int, deadline: float, heard: bytes, payload: bytes) -> None:
        if self.transport is None or not self.open:
            raise WireError("the line to the index is closed")
        head = _HEAD.pack(len(heard) + len(payload), number, deadline, len(heard))
        self.transport.write(head + heard + payload)
