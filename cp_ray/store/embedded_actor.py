"""The embedded Valkey server of one application, owned by a named actor.

Every process of the application asks the actor for the address; the server dies with the actor
and is started again on the same address.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import ray
from ray.exceptions import RayActorError, RayTaskError

from cp_ray.config import AppConfig
from cp_ray.errors import ConfigError
from cp_ray.named_actor import (
    application_gone,
    end,
    index_prefix,
    names_with,
    obtain,
    redis_name,
)
from cp_ray.store.embedded import EmbeddedServer

WATCH_PERIOD_S = 0.5
START_PATIENCE_S = 60.0
_log = logging.getLogger("ray.serve")


class EmbeddedRedis:
    """Keeps one EmbeddedServer running while the Serve application `app` exists."""

    def __init__(self, app: str) -> None:
        self._directory = _directory(app, ray.get_runtime_context().gcs_address)
        self._server = EmbeddedServer(self._directory)
        self._known = asyncio.Event()
        self._error: ConfigError | None = None
        self._keeper = asyncio.create_task(self._keep())
        me = ray.get_runtime_context().current_actor
        self._ender = asyncio.create_task(self._end(app, me))

    async def url(self) -> tuple[str, str]:
        """Address with password, and the host it is valid on. Raises ConfigError."""
        await self._known.wait()
        if self._error is not None:
            raise self._error
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
                    faults, self._error = 0, None
                    self._known.set()
                except ConfigError as error:
                    _log.warning("%s", error)
                    faults += 1
                    # The last incarnation's server may still be ending: that is no fault.
                    if faults > 3:
                        self._error = error
                        self._known.set()
            await asyncio.sleep(WATCH_PERIOD_S)

    async def _end(self, app: str, me: ray.actor.ActorHandle) -> None:
        await application_gone(app)
        # The index would only start another Redis; Ray tells nobody when an actor ends.
        while await asyncio.to_thread(names_with, index_prefix(app)):  # noqa: ASYNC110
            await asyncio.sleep(WATCH_PERIOD_S)
        self._keeper.cancel()
        await asyncio.to_thread(self._server.stop)
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
        end(me, "its Serve application is gone")


async def redis_url(config: AppConfig, app: str) -> str:
    """Redis address of the application: the configured one, else the embedded server's.

    Raises ConfigError when the embedded server cannot run, or runs on another host.
    """
    if config.redis_url is not None:
        return config.redis_url.get_secret_value()
    deadline = time.monotonic() + START_PATIENCE_S
    while True:
        try:
            actor = await asyncio.to_thread(obtain, EmbeddedRedis, redis_name(app), app)
            url, host = await actor.url.remote()
            break
        except RayTaskError as error:
            if isinstance(error.cause, ConfigError):
                raise error.cause from error
            raise
        except RayActorError as error:  # it ends or restarts: the next one answers
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the embedded Redis does not start within {START_PATIENCE_S:.0f} s: "
                    "set redis_url to a Redis server of your own",
                    param="redis_url",
                ) from error
            await asyncio.sleep(0.2)
    if host != ray.util.get_node_ip_address():
        raise ConfigError(
            f"the embedded Redis serves only its own host {host}, and this process runs on "
            "another: set redis_url to a Redis server that every host reaches",
            param="redis_url",
        )
    return str(url)


def _directory(app: str, cluster: str) -> Path:
    """One directory per user, Ray cluster and application; a symlink or another's is refused."""
    parent = Path(tempfile.gettempdir()) / f"cp_ray-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    facts = parent.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise ConfigError(f"{parent} is not a private folder of this user: remove it and try again")
    key = hashlib.blake2b(f"{cluster}|{app}".encode(), digest_size=8).hexdigest()
    directory = parent / f"redis-{key}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory
