"""Event follower: reads one engine's cache events, in a task of its own, into a cache view."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from cp_ray.errors import EngineError
from cp_ray.workers.cache_view import CacheView
from cp_ray.workers.engine import CacheListener
from cp_ray.workers.kv_events import EventStream
from cp_ray.workers.residency import Residency


class Endpoints(NamedTuple):
    """Where one engine publishes its cache events, and where it replays them: ZMQ addresses."""

    events: str
    replay: str


class EventFollower:
    """For one event loop: first `open`, then `follow`. endpoints: for the engine to bind."""

    def __init__(self) -> None:
        self.endpoints: Endpoints
        self.view: CacheView
        self.events: EventStream
        self._folder: Path | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Make a private folder for the sockets."""
        # Not under TMPDIR: the path of a socket has at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="cp_ray_", dir="/tmp"))
        self.endpoints = Endpoints(f"ipc://{self._folder}/events", f"ipc://{self._folder}/replay")

    async def follow(
        self, residency: Residency, listener: CacheListener, drop: Callable[[], Awaitable[None]]
    ) -> None:
        """Follow an engine that has started. drop: see `CacheView`."""
        self.view = CacheView(residency, listener, drop)
        self.events = EventStream(
            *self.endpoints,
            lambda events: self.view.on_batch(events, self.events.made_at),
            self.view.on_hole,
        )
        await self.events.catch_up()
        self._task = asyncio.create_task(self.events.run(), name="cache-events")

    def check(self) -> None:
        """Raise EngineError when nobody follows the engine's cache any more."""
        if self._task is not None and self._task.done():
            raise EngineError("the engine's cache events are no longer read")
        if self._task is not None and self.view.failed is not None:
            raise self.view.failed

    async def close(self) -> None:
        """End it; a second call, or one before `open`, does nothing."""
        if self._task is not None:
            self.view.close()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self.events.close()
            self._task = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
