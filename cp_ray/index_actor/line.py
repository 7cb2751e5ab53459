"""A line of its own between the index and those who ask it on its host (docs/decisions/0032).

An actor's call passes four threads on its way there and back; a socket passes none. It is an
abstract Unix socket: no file stays behind, and only its host (and network namespace) reaches it.
Who calls must run as the same user and know the index's secret, which it tells by Ray. Where there
is no line, or it breaks, calls go by Ray.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import os
import secrets
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

from cp_ray.errors import WireError

Answer = Callable[[bytes, float, bytes], bytes]
"""The actor's `plan`: requests, deadline, heard -> steps."""
_CALL = struct.Struct("<IIdI")
"""Of a call: length of the rest, its number, deadline, length of what was heard (it comes first).
Number 0 is heard only, and not answered."""
_ANSWER = struct.Struct("<II")
"""Of an answer: length of the rest, number of the call."""
_PEER = struct.Struct("3i")
"""What the kernel knows of the other end: process, user, group."""
_SECRET_BYTES = 16
WELCOME = 0
"""The number that no call has: the other end is known now."""
MOST_BYTES = 64 << 20
"""Of one frame, and of what waits to be written to one that does not read."""
MOST_LINES = 1024
"""Open at a time; whoever comes then goes by Ray."""
SECRET_S = 5.0
"""How long a line may be open without the secret."""
_log = logging.getLogger("ray.serve")


class _Frames(asyncio.Protocol, ABC):
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
                self.abort()
                return
            if len(self._buffer) < size + length:
                return
            head = self.head.unpack_from(self._buffer)
            rest = bytes(self._buffer[size : size + length])
            del self._buffer[: size + length]
            self.frame(head, rest)

    @abstractmethod
    def frame(self, head: tuple[Any, ...], rest: bytes) -> None:
        """A whole one."""

    def send(self, data: bytes) -> None:
        """Raises WireError when the other end does not read, or is gone."""
        if self.transport is None or self.transport.is_closing():
            raise WireError("the line to the index is closed")
        if self.transport.get_write_buffer_size() > MOST_BYTES:
            self.abort()
            raise WireError("the other end of the line does not read")
        self.transport.write(data)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Caller(_Frames):
    """The index's end of one line. lines: those that are open, this one among them."""

    head = _CALL

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines
        self._known = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._lines.open) >= MOST_LINES or _user_of(transport) != os.geteuid():
            self.abort()
            return
        self._lines.open.add(self)
        self._patience = asyncio.get_running_loop().call_later(SECRET_S, self.abort)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - however it ended
        self._lines.open.discard(self)
        if self._patience is not None:
            self._patience.cancel()

    def data_received(self, data: bytes) -> None:
        if not self._known:
            self._buffer += data
            if len(self._buffer) < _SECRET_BYTES:
                return
            given, data = bytes(self._buffer[:_SECRET_BYTES]), bytes(self._buffer[_SECRET_BYTES:])
            self._buffer.clear()
            self._known = hmac.compare_digest(given, self._lines.secret)
            if not self._known:
                self.abort()
                return
            if self._patience is not None:
                self._patience.cancel()
            self.send(_ANSWER.pack(0, WELCOME))
        super().data_received(data)

    def frame(self, head: tuple[Any, ...], rest: bytes) -> None:
        _, number, deadline, heard_bytes = head
        heard, payload = rest[:heard_bytes], rest[heard_bytes:]
        try:
            if number:
                answer = self._lines.plan(payload, deadline, heard)
                self.send(_ANSWER.pack(len(answer), number) + answer)
            else:
                self._lines.hear(heard)
        except Exception:  # noqa: BLE001 - the caller finds its line closed, and goes by Ray
            _log.exception("A call by line failed.")
            self.abort()


class Lines:
    """Where the index takes calls by line; opened when somebody asks where that is."""

    def __init__(self, plan: Answer, hear: Callable[[bytes], None]) -> None:
        self.secret = secrets.token_bytes(_SECRET_BYTES)
        self.open: set[_Caller] = set()
        self.hear = hear
        self._plan = plan
        self._address = f"\0cp-ray-{secrets.token_hex(8)}"
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._warned = False
        self._planned = 0

    def counters(self) -> dict[str, int]:
        """plans_by_line since the start."""
        return {"plans_by_line": self._planned}

    async def where(self) -> tuple[str, bytes] | None:
        """Address and secret; None where there is no such socket: it is tried again when asked."""
        if sys.platform != "linux":
            return None
        async with self._opening:
            if self._server is None:
                try:
                    self._server = await self._listen()
                except OSError as error:
                    if not self._warned:
                        _log.warning("No line to the index: %s. Calls go by Ray.", error)
                    self._warned = True
                    return None
        return self._address, self.secret

    async def _listen(self) -> asyncio.Server:
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(self._address)
            listening.setblocking(False)
            loop = asyncio.get_running_loop()
            return await loop.create_unix_server(lambda: _Caller(self), sock=listening)
        except BaseException:
            listening.close()
            raise

    def plan(self, payload: bytes, deadline: float, heard: bytes) -> bytes:
        """The actor's, counted."""
        self._planned += 1
        return self._plan(payload, deadline, heard)


class Line(_Frames):
    """The other end. Use `connect`."""

    head = _ANSWER

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self._secret = secret
        self._numbers = itertools.cycle(range(1, 1 << 31))
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self.open = False
        self._decided = asyncio.Event()

    @classmethod
    async def connect(cls, address: str, secret: bytes) -> Line | None:
        """None where the index is on another host, or turns us away. Give it a time limit."""
        near = socket.socket(socket.AF_UNIX)
        near.setblocking(False)
        try:
            near.connect(address)  # at once or not at all; uvloop itself knows no such addresses
        except OSError:
            near.close()
            return None
        loop = asyncio.get_running_loop()
        _, line = await loop.create_unix_connection(lambda: cls(secret), sock=near)
        try:
            await line._decided.wait()
        except asyncio.CancelledError:
            line.abort()
            raise
        return line if line.open else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The secret goes first."""
        super().connection_made(transport)
        self.send(self._secret)

    def connection_lost(self, error: Exception | None) -> None:
        """Calls under way fail; later ones go by Ray."""
        self.open = False
        self._decided.set()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(WireError(f"the line to the index broke: {error!r}"))

    async def plan(self, payload: bytes, deadline: float, heard: bytes) -> bytes:
        """The actor's answer. Raises WireError when the line breaks meanwhile."""
        number = next(self._numbers)
        call = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, deadline, heard, payload)
            return await call
        finally:
            self._calls.pop(number, None)

    def hear(self, heard: bytes) -> None:
        """Tell, and wait for nothing. Raises WireError when the line is closed."""
        self._send(0, 0.0, heard, b"")

    def frame(self, head: tuple[Any, ...], rest: bytes) -> None:
        """An answer; nobody may wait for it any more."""
        if head[1] == WELCOME:
            self.open = True
            self._decided.set()
        call = self._calls.get(head[1])
        if call is not None and not call.done():
            call.set_result(rest)

    def _send(self, number: int, deadline: float, heard: bytes, payload: bytes) -> None:
        head = _CALL.pack(len(heard) + len(payload), number, deadline, len(heard))
        self.send(head + heard + payload)


def _user_of(transport: asyncio.BaseTransport) -> int:
    """Who is at the other end, as the kernel has it."""
    end = transport.get_extra_info("socket")
    peer = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    user: int = _PEER.unpack(peer)[1]
    return user
