"""Serve on a Ray of this process' own, on a free port; both are gone afterwards.

For benchmarks and tests that start an application from Python; never another Ray's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cp_ray.router.direct_settings import DIRECT_SETTINGS

SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 starves workers beside anything else
}
"""Of the environment, where nothing else is set there."""
HAPROXY_FILES = {
    "CONFIG_FILE_LOC": "haproxy.cfg",
    "SOCKET_PATH": "admin.sock",
    "SERVER_STATE_BASE": "",
    "SERVER_STATE_FILE": "server-state",
    "METRICS_SOCKET_PATH": "metrics.sock",
}
"""All below /tmp/haproxy-serve by default, so that two clusters on a host would share them."""
HOST_MEMORY = 80 << 20
HEAD_CPUS = 4
TRIES = 3
"""Ray gives a host 30 s to come up, which on a busy machine of 2 cores may not do."""


@contextlib.contextmanager
def direct_environment() -> Iterator[None]:
    """What the direct data plane needs, and HAProxy's files and ports where no other's are.

    Enter it before anything imports Ray Serve, which reads it then.
    """
    before = dict(os.environ)
    folder = tempfile.mkdtemp(prefix="ha-")
    os.environ |= DIRECT_SETTINGS
    for name, file in HAPROXY_FILES.items():
        os.environ[f"RAY_SERVE_HAPROXY_{name}"] = str(Path(folder, file))
    for name in ("METRICS_PORT", "STATS_PORT"):
        os.environ[f"RAY_SERVE_HAPROXY_{name}"] = str(free_port())
    # Half a minute by default, for load balancers that have to notice; nobody asks here any more.
    os.environ["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] = "1"
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def own_serve(
    cpus: float, *, root: Path | None = None, proxy: bool = True, memory_mb: int = 100, **init: Any
) -> Iterator[str]:
    """Base address of a Serve without applications; without `proxy` nobody listens there.

    cpus: logical ones. root: where workers find modules that are not installed. memory_mb: of the
    object store, which an application hardly uses. init: more for `ray.init`. What is printed
    meanwhile goes to standard error: Ray prints its workers' faults to standard output, even when
    told not to, and there they would stand before a report in JSON.
    """
    import ray
    from ray import serve

    with _settings(root) as folder, contextlib.redirect_stdout(sys.stderr):
        try:
            init |= {"include_dashboard": False, "log_to_driver": False, "_temp_dir": folder}
            memory = memory_mb << 20
            _with_patience(
                lambda: ray.init("local", num_cpus=cpus, object_store_memory=memory, **init)
            )
            yield start_serve(proxy=proxy)
        finally:
            if ray.is_initialized():
                serve.shutdown()
                ray.shutdown()


@contextlib.contextmanager
def own_cluster(
    hosts: int, cpus: float, *, gpus: int = 0, root: Path | None = None, **init: Any
) -> Iterator[Any]:
    """An emulated cluster: a head and so many hosts, Ray's own raylets; ray.cluster_utils.Cluster.

    cpus, gpus: logical ones of each host; the head has HEAD_CPUS and no GPU.
    """
    import ray
    from ray.cluster_utils import Cluster

    with _settings(root) as folder:
        os.environ["RAY_TMPDIR"] = folder  # else other clusters here lose their address file
        memory = {"object_store_memory": HOST_MEMORY}
        head = {"num_cpus": HEAD_CPUS, "num_gpus": 0, "include_dashboard": False, **memory}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(hosts):
                _with_patience(lambda: cluster.add_node(num_cpus=cpus, num_gpus=gpus, **memory))
            ray.init(address=cluster.address, log_to_driver=False, **init)
            cluster.wait_for_nodes()
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def start_serve(*, proxy: bool = True) -> str:
    """Start Serve on the Ray that is there; its base address.

    The proxy is on the head only: emulated hosts share one address, and with one on each the kernel
    would spread connections over all of them.
    """
    from ray import serve

    port = free_port()
    where = "HeadOnly" if proxy else "Disabled"
    serve.start(proxy_location=where, http_options={"host": "127.0.0.1", "port": port})
    return f"http://127.0.0.1:{port}"


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _settings(root: Path | None) -> Iterator[str]:
    """The environment that Ray's processes inherit, put back at the end; a folder for them."""
    before = dict(os.environ)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if root is not None:
        path = filter(None, (os.environ.get("PYTHONPATH"), str(root)))
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
    # Short: sockets live under it, and their paths may have 107 bytes.
    folder = tempfile.mkdtemp(prefix="cp-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.clear()
        os.environ.update(before)


def _with_patience(start: Callable[[], Any]) -> None:
    for left in reversed(range(TRIES)):
        try:
            start()
        except Exception:  # Ray raises nothing more precise
            if not left:
                raise
        else:
            return
