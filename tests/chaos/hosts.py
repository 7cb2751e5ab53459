"""Where the chaos suite runs: three emulated hosts, and a control service that can be restarted.

Hosts are Ray's own raylets. The control service (GCS) keeps its state in a Redis of its own, as a
production cluster does that wants to survive the loss of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from cp_ray.store.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parents[2]
CPUS = 5
"""Of each host: room for two engine replicas, so that two hosts can take what three had."""
CPUS_PER_REPLICA = 2.0
CLOCKS_BYTES = 8 << 22
"""One float64 for each process id that Linux gives."""


class Hosts:
    """The emulated cluster. folder: for what the suite itself keeps."""

    def __init__(self, cluster: Any, folder: Path) -> None:
        self._cluster = cluster
        self.folder = folder
        self.clocks = folder / "clocks"
        self.hung = folder / "hung"

    def add(self) -> None:
        """Start another host."""
        self._cluster.add_node(num_cpus=CPUS, object_store_memory=80 << 20)

    def workers(self) -> list[tuple[Any, list[psutil.Process]]]:
        """Each host but the head, and all of its processes, the raylet first."""
        found = []
        for node in self._cluster.worker_nodes:
            (raylet,) = node.all_processes["raylet"]
            process = psutil.Process(raylet.process.pid)
            found.append((node, [process, *process.children(recursive=True)]))
        return found

    def kill(self, node: Any, processes: list[psutil.Process]) -> None:
        """kill -9 of a whole host."""
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    def stop_control_service(self) -> None:
        """kill -9 of Ray's GCS."""
        self._cluster.head_node.kill_gcs_server()

    def start_control_service(self) -> None:
        """Start it again, on the same port, from what Redis kept."""
        self._cluster.head_node.start_gcs_server()

    def remove(self) -> None:
        """Nothing of all this is left afterwards.

        The process must end then, and not shut Serve or Ray down before: that waits a minute for a
        control service that was restarted, and then Ray ends the process, with a status of its own.
        """
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def hosts() -> Iterator[Hosts]:
    """A head and two more hosts; everything of them is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="cp-"))  # short: it becomes part of socket paths
    for name, size in (("clocks", CLOCKS_BYTES), ("hung", CLOCKS_BYTES // 8)):
        with (folder / name).open("wb") as file:
            file.truncate(size)
    store = EmbeddedServer(folder / "gcs")
    address = urlsplit(store.start())
    os.environ |= {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_REDIS_ADDRESS": f"127.0.0.1:{address.port}",
        "RAY_TMPDIR": str(folder),
        # What docs/operations.md advises: Ray's own 10 s keep the port closed for half a minute.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
        "PYTHONPATH": f"{ROOT / 'tests/chaos/clocks'}:{ROOT}",
        "CP_RAY_CLOCKS": str(folder / "clocks"),
        "CP_RAY_HUNG": str(folder / "hung"),
    }
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": CPUS, "include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(
        initialize_head=True, head_node_args=head | {"redis_password": address.password}
    )
    running = Hosts(cluster, folder)
    try:
        running.add()
        running.add()
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes()
        yield running
    finally:
        running.remove()
