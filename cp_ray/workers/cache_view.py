"""Cache view: what is believed of one engine's cache, from its events and from our own resets.

An engine tells of a reset with its next step, which may come long after the reset returned (an
idle engine) or before (a busy one). Until it did, what it tells is of the cache before.

| event               | unheard | lost | next                                           |
|---------------------|---------|------|------------------------------------------------|
| batch               | 0       | no   | apply                                          |
| batch, no Cleared   | n or    | yes  | void                                           |
| Cleared             | n > 0   |      | unheard n - 1: it was told already             |
| Cleared             | 0       |      | believe nothing; not lost                      |
| reset returned      |         |      | heard meanwhile: same; else believe nothing,   |
|                     |         |      | unheard + 1, not lost                          |
| hole, contradiction |         |      | believe nothing; unheard 0, lost; reset begins |

"Believe nothing" is a new epoch to the listener. After a hole nobody knows whether a Cleared was
in it: the first that comes counts, and one too many is only a further epoch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from cp_ray.core.types import RequestId
from cp_ray.errors import EngineError
from cp_ray.workers.cache_events import CacheEvent, Cleared
from cp_ray.workers.engine import CacheListener
from cp_ray.workers.residency import Path, Residency

log = logging.getLogger(__name__)


class CacheView:
    """Owner of the residency of one engine, for one event loop.

    drop: drops the engine's cache, and returns when that is done; raises EngineError. clock: the
    one the engine dates its batches with. failed: what a reset after a hole died of; the view is
    void from then on.
    """

    def __init__(
        self,
        residency: Residency,
        listener: CacheListener,
        drop: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.residency = residency
        self.failed: EngineError | None = None
        self._listener = listener
        self._drop = drop
        self._clock = clock
        self._heard = 0
        self._unheard = 0
        self._holes = 0
        self._lost = False
        self._resetting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def register(self, request: RequestId, path: Path) -> None:
        """Follow a request whose first token came now."""
        forgotten = self.residency.register(request, path, self._clock())
        if forgotten:
            self._listener.evicted(forgotten)

    def ended(self, request: RequestId, rest: Sequence[int] = (), *, whole: bool) -> None:
        """A request has ended now; see `Residency.ended`."""
        self.residency.ended(request, rest, whole=whole, at=self._clock())

    def on_batch(self, events: Sequence[CacheEvent], made_at: float) -> None:
        """Take one batch. made_at: seconds since 1970, by the clock of this host."""
        while self._lost or self._unheard:
            kinds = [type(event) for event in events]
            if Cleared not in kinds:
                return
            events = events[kinds.index(Cleared) + 1 :]
            self._heard += 1
            if self._unheard:
                self._unheard -= 1
            else:
                self._lost = False
                self._believe_nothing()
        self._heard += sum(isinstance(event, Cleared) for event in events)
        doubts = self.residency.doubts
        evictions = self.residency.apply(events, made_at)
        if any(isinstance(event, Cleared) for event in events):
            self._listener.new_epoch()
        if evictions:
            self._listener.evicted(evictions)
        if self.residency.doubts > doubts:
            log.warning("cache events contradict each other: the cache is dropped")
            self.on_hole()

    def on_hole(self) -> None:
        """Blocks we missed would never be reported lost: start from an empty cache."""
        self._holes += 1
        self._unheard, self._lost = 0, True
        self._believe_nothing()
        task = asyncio.create_task(self._begin_anew(), name="reset-after-hole")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reset(self) -> None:
        """Drop the engine's cache; the listener hears of it before this returns.

        Raises EngineError.
        """
        async with self._resetting:
            heard, due, holes = self._heard, self._unheard, self._holes
            await self._drop()
            if self._holes > holes:
                return  # a reset of its own follows, and nothing is believed till then
            if self._heard - heard <= due:
                self._unheard += 1
                self._lost = False
                self._believe_nothing()

    def close(self) -> None:
        """End what runs; a second call does nothing."""
        for task in self._tasks:
            task.cancel()

    def _believe_nothing(self) -> None:
        self.residency.apply([Cleared()])
        self._listener.new_epoch()

    async def _begin_anew(self) -> None:
        try:
            await self.reset()
        except EngineError as error:
            self.failed = error  # the health check tells Serve to replace us
