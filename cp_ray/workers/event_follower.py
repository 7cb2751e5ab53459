"""Event follower: reads one engine's cache events, in a task of its own, into a cache view."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from cp_ray.errors import EngineError
from cp_ray.workers.cache_view import CacheView
from cp_ray.workers.engine import CacheListener
from cp_ray.workers.kv_events import EventStream
from cp_ray.workers.residency import Residency


class EventFollower:
    """For one event loop: first `open`, then `follow`.

    sockets: a private folder; the engine binds `events` and `replay` in it.
    """

    def __init__(self) -> None:
        self.sockets: Path
        self.view: CacheView
        self.events: EventStream
        self._opened = False
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Make the folder for the sockets."""
        # Not under TMPDIR: the path of a socket has at most 107 bytes.
        self.sockets = Path(tempfile.mkdtemp(prefix="cp_ray_", dir="/tmp"))
        self._opened = True

    async def follow(
        self, residency: Residency, listener: CacheListener, drop: Callable[[], Awaitable[None]]
    ) -> None:
        """Follow an engine that has started. drop: see `CacheView`."""
        self.view = CacheView(residency, listener, drop)
        self.events = EventStream(
            f"ipc://{self.sockets}/events",
            f"ipc://{self.sockets}/replay",
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
        if self._opened:
            shutil.rmtree(self.sockets, ignore_errors=True)
