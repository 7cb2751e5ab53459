"""Serve on a Ray of this process' own, on a free port; both are gone afterwards.

For benchmarks and tests that start an application from Python; never another Ray's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 starves workers beside anything else
}
"""Of the environment, where nothing else is set there."""


@contextlib.contextmanager
def own_serve(
    cpus: float, *, root: Path | None = None, proxy: bool = True, memory_mb: int = 100
) -> Iterator[str]:
    """Base address of a Serve without applications; without `proxy` nobody listens there.

    cpus: logical ones. root: where workers find modules that are not installed. memory_mb: of the
    object store, which an application hardly uses.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray
    from ray import serve

    # Short: sockets live under it, and their paths may have 107 bytes.
    folder = tempfile.mkdtemp(prefix="cp-")
    port = free_port()
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=memory_mb << 20,
            log_to_driver=False,
            _temp_dir=folder,
            runtime_env=_environment(root),
        )
        start_proxy(port, proxy=proxy)
        yield f"http://127.0.0.1:{port}"
    finally:
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def start_proxy(port: int, *, proxy: bool = True, head_only: bool = False) -> None:
    """Start Serve on the Ray that is there.

    head_only: hosts of an emulated cluster share one address: with a proxy on each, the kernel
    would spread connections over all of them.
    """
    from ray import serve

    if not proxy:
        serve.start(proxy_location="Disabled")
        return
    where = "HeadOnly" if head_only else "EveryNode"
    serve.start(proxy_location=where, http_options={"host": "127.0.0.1", "port": port})


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(root: Path | None) -> dict[str, Any]:
    if root is None:
        return {}
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(root))))
    return {"env_vars": {"PYTHONPATH": path}}
