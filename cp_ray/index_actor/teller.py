"""Teller: stories from a Router to the index actor in batches, and what the actor shows back."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from ray.exceptions import RayError

from cp_ray.core.story import Story
from cp_ray.index_actor.client import IndexClient
from cp_ray.store import wire

TELL_S = 0.25
MAX_STORIES = 8192
"""Kept while the index is down; past it the oldest is dropped."""
SHOW_TIMEOUT_S = 3.0


class Teller:
    """One per Router, for its event loop."""

    def __init__(self, client: IndexClient) -> None:
        self._client = client
        self._stories: deque[Story] = deque(maxlen=MAX_STORIES)
        self._task: asyncio.Task[None] | None = None

    def tell(self, story: Story) -> None:
        """Send it a little later, with others. Never blocks, never raises."""
        self._stories.append(story)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def fleet(self, since: float) -> bytes | None:
        """JSON of the fleet; series from `since` on, seconds since 1970. None: index is down."""
        return await self._show("fleet", since)

    async def explain(self, request_id: str) -> tuple[str, bytes] | None:
        """Tenant and JSON of one of the last requests; None when nobody knows it."""
        shown: tuple[str, bytes] | None = await self._show("explain", request_id)
        return shown

    async def _show(self, method: str, argument: Any) -> Any:
        actor = self._client.actor
        if actor is None:
            return None
        try:
            call = getattr(actor, method).remote(argument)
            async with asyncio.timeout(SHOW_TIMEOUT_S):
                return await call
        except (RayError, TimeoutError):
            return None

    async def _send(self) -> None:
        while self._stories:
            await asyncio.sleep(TELL_S)
            actor = self._client.actor
            if actor is None:
                continue
            batch = [self._stories.popleft() for _ in range(len(self._stories))]
            try:
                await actor.tell.remote(wire.encode(batch))
            except RayError:
                return  # told for show only: what is lost is lost
