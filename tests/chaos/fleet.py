"""One application under test: its processes, its Redis, and how far index and engines agree."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import ray
import redis
from ray import serve
from ray.serve.exceptions import RayServeException

from cp_ray.config import AppConfig
from cp_ray.named_actor import NAMESPACE, index_prefix, names_with
from cp_ray.store import wire
from cp_ray.store.embedded import EmbeddedServer
from tests.chaos.hosts import CPUS_PER_REPLICA, Hosts
from tests.chaos.slow_proxy import SlowProxy
from tests.e2e.support import application

NAME = "chaos"
KEY = "key-that-no-log-may-show"
REPLICAS = 3
HEALTH_S = 8.0
PROCESSES = {
    "replica": f"ray::ServeReplica:{NAME}:Engine",
    "ingress": f"ray::ServeReplica:{NAME}:Router",
    "proxy": "ray::ProxyActor",
    "index": "ray::IndexActor",
}
CALL_S = 3.0
UNANSWERED = (ray.exceptions.RayError, RayServeException, ValueError, TimeoutError)
"""What a call to something that is dead or stopped ends with."""
PAGE = 16
"""Engines count whole blocks, the index the tokens of the prompt."""
HEARD_S = 0.5
"""An eviction is in the index so long after the engine made it, or the index has a ghost."""


class Known(msgspec.Struct, frozen=True):
    """What index or engines have: (replica, request) -> leading tokens. replicas: who was asked."""

    tokens: dict[tuple[str, str], int]
    replicas: set[str]


class Fleet:
    """The running application. server, proxy: its Redis, and the way there. hosts: if emulated."""

    def __init__(
        self, base: str, server: EmbeddedServer, proxy: SlowProxy, hosts: Hosts | None
    ) -> None:
        self.base = base
        self.server = server
        self.proxy = proxy
        self._hosts = hosts

    @property
    def hosts(self) -> Hosts:
        """Of `make chaos`; the quick faults have none."""
        assert self._hosts is not None, "only `make chaos` has hosts"
        return self._hosts

    def set_clock(self, process: psutil.Process, ahead_s: float) -> None:
        """Let a process believe that it is so much later."""
        with self.hosts.clocks.open("r+b") as clocks:
            clocks.seek(8 * process.pid)
            clocks.write(struct.pack("d", ahead_s))

    def hang(self, process: psutil.Process) -> None:
        """Let the engine in a replica's process do nothing more."""
        with self.hosts.hung.open("r+b") as hung:
            hung.seek(process.pid)
            hung.write(b"\1")

    def admin(self) -> redis.Redis:
        """A connection of our own to Redis, not by the proxy."""
        return redis.Redis.from_url(self.server.url, socket_timeout=5)

    def processes(self, kind: str) -> list[psutil.Process]:
        """Running processes of one kind under this test's own Ray.

        One that an earlier fault has stopped for good may outlive its replacement: it is no victim.
        """
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                named = bool(words) and words[0].startswith(PROCESSES[kind])
                gone = (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)
                if named and process.status() not in gone:
                    found.append(process)
        return sorted(found, key=lambda process: process.pid)

    async def state(self) -> dict[str, Any]:
        """What the index says of itself; nothing while it cannot."""
        try:
            state: dict[str, Any] = await self._index_call("state")
        except UNANSWERED:
            return {}
        return state

    async def first_state(self) -> dict[str, Any]:
        """The index's state before a fault; waits for it."""
        while not (state := await self.state()):  # noqa: ASYNC110 - another process answers
            await asyncio.sleep(0.1)
        return state

    async def agreed(self) -> tuple[bool, str]:
        """Whether the index is up, hears everybody, and has no ghost; and else what is wrong."""
        state = await self.state()
        if not state:
            return False, "the index does not answer"
        if len(state["replicas"]) != REPLICAS:
            return False, f"{len(state['replicas'])} replicas are live"
        if not state["redis_connected"] or set(state["rungs"].values()) != {"exact"}:
            return False, f"not exact: {state['rungs']}"
        try:
            before = await self._recorded()
            held = await self._held()
            await asyncio.sleep(HEARD_S)
            after = await self._recorded()
            later = await self.state()
        except UNANSWERED as error:
            return False, f"no answer: {type(error).__name__}"
        live = set(state["replicas"])
        if live != held.replicas or live != set(later.get("replicas", ())):
            return False, "the live set changes"
        ghosts = [
            place
            for place, tokens in after.tokens.items()
            if place in before.tokens and tokens >= held.tokens.get(place, 0) + PAGE
        ]
        return not ghosts, f"{len(ghosts)} ghosts, such as {ghosts[:2]}"

    async def _recorded(self) -> Known:
        data: bytes = await self._index_call("records")
        return _known(wire.decode(data, dict[str, dict[str, int]]))

    async def _held(self) -> Known:
        handle = serve.get_deployment_handle("Engine", NAME)
        answers = await asyncio.wait_for(handle.broadcast("held").results_async(), 10)
        held: dict[str, dict[str, int]] = {}
        for answer in answers:
            held |= wire.decode(answer, dict[str, dict[str, int]])
        return _known(held)

    async def _index_call(self, method: str) -> Any:
        def actor() -> Any:
            (name,) = names_with(index_prefix(NAME))
            return ray.get_actor(name, NAMESPACE)

        handle = await asyncio.wait_for(asyncio.to_thread(actor), CALL_S)
        return await asyncio.wait_for(getattr(handle, method).remote(), CALL_S)


def _known(held: dict[str, dict[str, int]]) -> Known:
    tokens = {
        (replica, request): count
        for replica, requests in held.items()
        for request, count in requests.items()
    }
    return Known(tokens, set(held))


@contextlib.contextmanager
def fleet(serve_url: str, folder: Path, hosts: Hosts | None = None) -> Iterator[Fleet]:
    """Three simulated engines, two ingresses, and a Redis of our own behind the proxy."""
    server = EmbeddedServer(folder)
    url = server.start()
    port = int(url.rpartition(":")[2].partition("/")[0])
    proxy = SlowProxy(port)
    there = url.replace(f":{port}/", f":{proxy.start()}/")
    config = AppConfig.model_validate(
        {
            "engine": "simulated",
            "replicas": REPLICAS,
            "cpus_per_replica": CPUS_PER_REPLICA if hosts is not None else 0.5,
            "ingress_replicas": 2,
            "cache_tokens": 16_384,
            "page_size": PAGE,
            "prefill_tokens_per_s": 20_000,
            "decode_tokens_per_s": 200,
            "health_check_period_s": 0.5,
            "health_check_timeout_s": HEALTH_S,
            "redis_url": there,
            "api_keys": {"load": KEY},
        }
    )
    try:
        with application(serve_url, NAME, config) as base:
            yield Fleet(base, server, proxy, hosts)
    finally:
        proxy.stop()
        server.stop()


def logs_that_tell(secrets: Sequence[str]) -> list[str]:
    """Log files of this test's own Ray in which a secret stands."""
    folder = Path(ray._private.worker._global_node.get_logs_dir_path())
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files, "there are logs to look at"
    needles = [secret.encode() for secret in secrets]
    return [str(path) for path in files if any(n in path.read_bytes() for n in needles)]
