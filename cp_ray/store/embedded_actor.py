"""The embedded Valkey server of one application, owned by a named actor.

Every process of the application asks the actor for the address; the server dies with the actor
and is started again on the same address.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import ray
from ray.exceptions import RayActorError, RayTaskError

from cp_ray.config import AppConfig
from cp_ray.errors import ConfigError
from cp_ray.named_actor import end_with_application, obtain
from cp_ray.store.embedded import EmbeddedServer

WATCH_PERIOD_S = 0.5
START_PATIENCE_S = 60.0
_log = logging.getLogger("ray.serve")


class EmbeddedRedis:
    """Keeps one EmbeddedServer running while the Serve application `app` exists."""

    def __init__(self, app: str) -> None:
        self._directory = _directory(app, ray.get_runtime_context().gcs_address)
        self._server = EmbeddedServer(self._directory)
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = [
            asyncio.create_task(self._keep()),
            asyncio.create_task(self._end(app, ray.get_runtime_context().current_actor)),
        ]

    async def url(self) -> tuple[str, str]:
        """Address with password, and the host it is valid on. Raises ConfigError."""
        await asyncio.shield(self._started)
        return self._server.url, ray.util.get_node_ip_address()

    async def pid(self) -> int | None:
        """Process id of the server, None while it is down."""
        return self._server.pid

    async def _keep(self) -> None:
        faults = 0
        while True:
            if not self._server.alive():
                try:
                    await asyncio.to_thread(self._server.start)
                    faults = 0
                    if not self._started.done():
                        self._started.set_result(None)
                except ConfigError as error:
                    # A server of the last incarnation may be about to end: once is no fault.
                    faults += 1
                    _log.warning("%s", error)
                    if faults > 3 and not self._started.done():
                        self._started.set_exception(error)
            await asyncio.sleep(WATCH_PERIOD_S)

    async def _end(self, app: str, me: ray.actor.ActorHandle) -> None:
        await end_with_application(app, _Ending(self, me))
