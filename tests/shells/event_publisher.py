"""A publisher of cache events as vLLM runs it, which loses, repeats and delays on demand."""

import asyncio
import itertools
from typing import Any

import msgpack  # type: ignore[import-untyped]

_clock = itertools.count(1.0)


def packed(*events: Any, form: type = list) -> bytes:
    if form is dict:
        return msgpack.packb({"ts": next(_clock), "events": list(events), "data_parallel_rank": 0})
    return msgpack.packb([next(_clock), list(events), 0])


class Publisher:
    """What vLLM runs: a PUB socket, and a ROUTER that replays the last `kept` batches.

    XPUB is a PUB that hears who subscribes.
    """

    def __init__(self, folder: str, kept: int = 100) -> None:
        from zmq.asyncio import Context
        from zmq.constants import ROUTER, XPUB

        self.endpoints = (f"ipc://{folder}/events", f"ipc://{folder}/replay")
        self.context = Context()
        self.pub, self.router = self.context.socket(XPUB), self.context.socket(ROUTER)
        self.pub.bind(self.endpoints[0])
        self.router.bind(self.endpoints[1])
        self.kept = kept
        self.log: list[bytes] = []
        self.serving = asyncio.create_task(self.serve())

    async def subscribed(self) -> None:
        """Until somebody listens: who is not there yet hears nothing."""
        await asyncio.wait_for(self.pub.recv(), 30)

    async def publish(self, payload: bytes, lose: bool = False) -> None:
        self.log.append(payload)
        if not lose:
            await self.send(len(self.log) - 1)

    async def send(self, number: int) -> None:
        """Send a batch of the log, perhaps again or late."""
        await self.pub.send_multipart([b"", number.to_bytes(8, "big"), self.log[number]])

    def restart(self) -> None:
        """A new engine behind the same sockets: it numbers from 0 and replays only its own."""
        self.log.clear()

    async def serve(self) -> None:
        while True:
            client, empty, start = await self.router.recv_multipart()
            first = max(int.from_bytes(start, "big"), len(self.log) - self.kept)
            for sequence in range(first, len(self.log)):
                frames = [client, empty, b"", sequence.to_bytes(8, "big"), self.log[sequence]]
                await self.router.send_multipart(frames)
            await self.router.send_multipart([client, empty, b"", b"\xff" * 8, b""])

    def close(self) -> None:
        self.serving.cancel()
        self.context.destroy(linger=0)
