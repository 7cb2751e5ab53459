"""Losses on the way from an engine's events to what is believed of its cache."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from cp_ray.workers.cache_events import CacheEvent, Removed, Stored
from cp_ray.workers.kv_events import EventStream


class Loser:
    """Loses this share of the events of some kinds, without a trace."""

    def __init__(
        self, share: float, kind: tuple[type[Stored] | type[Removed], ...], seed: int
    ) -> None:
        self.rng = random.Random(seed)
        self.share, self.kind = share, kind
        self.lost = self._told = 0

    def took(self) -> bool:
        """Whether it lost any since it was asked last."""
        told, self._told = self._told, self.lost
        return self.lost > told

    def __call__(self, event: CacheEvent) -> list[CacheEvent]:
        if isinstance(event, self.kind) and self.rng.random() < self.share:
            self.lost += 1
            return []
        return [event]


class _Lossy:
    """A subscriber that does not get what `loses` names."""

    def __init__(self, socket: Any, loses: Callable[[int], bool]) -> None:
        self._socket, self._loses = socket, loses

    async def recv_multipart(self) -> list[bytes]:
        while True:
            frames: list[bytes] = await self._socket.recv_multipart()
            if not self._loses(int.from_bytes(frames[-2], "big")):
                return frames


@contextmanager
def loses(events: EventStream, these: Callable[[int], bool]) -> Iterator[None]:
    """Batches with these numbers are lost on the way; the one awaited now still comes."""
    socket = events._socket
    events._socket = _Lossy(socket, these)
    try:
        yield
    finally:
        events._socket = socket


@asynccontextmanager
async def replays(events: EventStream, after_s: float, folder: str) -> AsyncIterator[None]:
    """Answers to replay requests come so much later."""
    from zmq.asyncio import Context
    from zmq.constants import DEALER, ROUTER

    behind = events._replay_endpoint
    context = Context()
    front = context.socket(ROUTER)
    front.bind(f"ipc://{folder}/late")

    async def one(request: list[bytes]) -> None:
        await asyncio.sleep(after_s)
        back = context.socket(DEALER)
        back.connect(behind)
        await back.send_multipart(request[1:])
        while True:
            frames = await back.recv_multipart()
            await front.send_multipart([request[0], *frames])
            if frames[-2] == b"\xff" * 8:
                break
        back.close(linger=0)

    async def serve() -> None:
        answers = set()
        while True:
            task = asyncio.create_task(one(await front.recv_multipart()))
            answers.add(task)
            task.add_done_callback(answers.discard)

    serving = asyncio.create_task(serve())
    events._replay_endpoint = f"ipc://{folder}/late"
    try:
        yield
    finally:
        events._replay_endpoint = behind
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        context.destroy(linger=0)
