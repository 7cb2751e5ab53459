"""A residency that follows a publisher over real sockets, as the vLLM adapter does."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from cp_ray.workers.cache_events import CacheEvent, Cleared
from cp_ray.workers.kv_events import EventStream
from cp_ray.workers.residency import Residency
from tests.shells.event_publisher import Publisher, packed

PAGE = 4


def block(name: str) -> list[int]:
    """Tokens of one block."""
    return [ord(name) * 10 + place for place in range(PAGE)]


def prompt(names: str) -> list[int]:
    """A prompt of these blocks, and one token more."""
    return [token for name in names for token in block(name)] + [1]


def stored(names: str, after: str = "", **fields: Any) -> dict[str, Any]:
    """The blocks `names` behind those `after`; a block's hash is the path that leads to it."""
    return {
        "type": "BlockStored",
        "block_hashes": [_hash(after + names[: end + 1], fields) for end in range(len(names))],
        "parent_block_hash": _hash(after, fields) if after else None,
        "token_ids": [token for name in names for token in block(name)],
        "block_size": PAGE,
        "lora_id": None,
        "medium": "GPU",
        **fields,
    }


def removed(*paths: str, **fields: Any) -> dict[str, Any]:
    """One copy of the last block of each path."""
    hashes = [_hash(path, fields) for path in paths]
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", **fields}


def _hash(path: str, fields: dict[str, Any]) -> int:
    return hash((path, repr(fields))) & 0xFFFF_FFFF_FFFF


class Followed:
    """A publisher, and the residency that hears of it."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.residency = Residency(PAGE)
        self.epochs = self.holes = 0

    def held(self, names: str) -> int:
        """Leading blocks held of a prompt."""
        return self.residency.held_tokens(self.residency.path(prompt(names))) // PAGE

    def on_batch(self, events: list[CacheEvent]) -> None:
        self.residency.apply(events)
        self.epochs += any(isinstance(event, Cleared) for event in events)

    def on_hole(self) -> None:
        self.holes += 1
        self.residency.apply([Cleared()])

    async def publish(self, *events: dict[str, Any], lose: bool = False) -> None:
        await self.publisher.publish(packed(*events, form=dict), lose=lose)

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(500):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("never happened")


@asynccontextmanager
async def followed(kept: int = 100) -> AsyncIterator[Followed]:
    folder = tempfile.mkdtemp(prefix="cp_", dir="/tmp")
    subject = Followed(Publisher(folder, kept))
    stream = EventStream(*subject.publisher.endpoints, subject.on_batch, subject.on_hole)
    task = asyncio.create_task(stream.run())
    await subject.publisher.subscribed()
    try:
        yield subject
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        stream.close()
        subject.publisher.close()
        shutil.rmtree(folder)
