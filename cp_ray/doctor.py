"""What stands between this host and a running application, and what to do about each."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from cp_ray.compiling import is_compiled, is_stale
from cp_ray.config import AppConfig
from cp_ray.engine_packages import check_engine
from cp_ray.errors import ConfigError
from cp_ray.finding import Finding
from cp_ray.prerequisites import check_model, check_redis
from cp_ray.serve_config import gpus_asked
from cp_ray.tracing import check_tracing

HTTP_PORT = 8000
"""Where `serve run` listens."""
_CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")  # noqa: S108 - Ray's own path
_DISTRIBUTION = "cp-ray"


def diagnose(config: AppConfig, http_port: int = HTTP_PORT) -> list[Finding]:
    """Check what `config` needs against this host, without starting Ray or an engine.

    Takes seconds; must not run inside an event loop. Nothing is raised: a fault is a Finding.
    """
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_planner,
        check_ray,
        lambda: check_redis(config),
        lambda: check_engine(config),
        lambda: check_model(config),
        lambda: check_port(http_port),
        lambda: check_gpus(config, gpus_here()),
    ]
    if config.otlp_endpoint is not None:
        checks.append(lambda: check_traces(config))
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


def check_traces(config: AppConfig) -> Finding:
    """Whether the traces that are wanted can be made; asks no collector."""
    try:
        check_tracing(config)
    except ConfigError as error:
        fix = "pip install 'cp-ray[otel]', or leave otlp_endpoint out"
        return Finding("traces", ok=False, detail=error.message, fix=fix)
    return Finding("traces", ok=True, detail=f"OpenTelemetry is here; to {config.otlp_endpoint}")


def check_planner() -> Finding:
    """Whether plans are made by machine code, and by that of these sources."""
    if is_stale():
        detail, fix = "compiled from other sources than these", "python -m cp_ray.compiling"
        return Finding("planner", False, detail, fix)
    if is_compiled():
        return Finding("planner", True, "compiled", "")
    fix = "for twice the speed: a C compiler and Python's headers, then python -m cp_ray.compiling"
    return Finding("planner", None, "plain Python: it works, and a plan takes twice as long", fix)


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
        idle = asked == 0 and here > 0 and config.engine != "simulated"
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


def _not_installed(name: str, detail: str) -> Finding:
    fix = f"pip install {_DISTRIBUTION} into this environment ({sys.prefix})"
    return Finding(name, ok=None, detail=f"{detail}: {_DISTRIBUTION} is not installed", fix=fix)
