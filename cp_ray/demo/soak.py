"""`cp-ray bench serve --soak`: does anything grow? The whole application under steady load.

Simulated engines on a Ray of its own. First a short closed loop finds what the machine can do;
then requests come at `load` of that, at random times, for as long as asked. Sampled all the while:
memory and open files of every process, by kind, and the keys in Redis. At the end the load drains,
and nothing may be left reserved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec

from cp_ray.config import AppConfig
from cp_ray.demo.growth import Growth, Sample, growth, sizes
from cp_ray.errors import EngineUnavailable

NAME = "soak"
SATURATE_S, SAMPLE_S, DRAIN_S = 10.0, 5.0, 10.0
MOST_OPEN = 512
"""Requests under way at most: a machine that cannot keep up shows in `late`, not in memory."""
MOST_LATE = 0.01
"""Share of requests that may find no room, or the load was no longer the one that was asked for."""
FIXED_KEYS = 8
"""Streams, journal, snapshot and counter; whatever the traffic, there are no more after it."""


class SoakOptions(msgspec.Struct, frozen=True):
    """seconds: of steady load. load: share of what the closed loop reached. clients: in it."""

    seconds: float = 600.0
    replicas: int = 2
    clients: int = 16
    load: float = 0.8
    seed: int = 0


class Soak(msgspec.Struct, frozen=True):
    """The report. late: requests that found MOST_OPEN under way and were not sent."""

    minutes: float
    requests: int
    requests_per_s: float
    errors: int
    late: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    growth: dict[str, Growth]
    redis_keys: int
    reserved: int
    records: int

    @property
    def faults(self) -> list[str]:
        """What must not be, one line each."""
        found = [f"{self.errors} requests failed"] if self.errors else []
        found += [f"{self.reserved} requests are still reserved"] if self.reserved else []
        if self.redis_keys > FIXED_KEYS:
            found.append(f"{self.redis_keys} keys are left in Redis")
        if self.late > MOST_LATE * self.requests:
            found.append(
                f"{self.late} requests were not sent: the machine has slowed down since its limit "
                "was found, so what grows is the queue; run it where nothing else runs"
            )
            return found
        for kind, grown in self.growth.items():
            if grown.mb_per_minute - grown.plus_minus > 0.002 * grown.mb:
                found.append(f"{kind} grows by {grown.mb_per_minute:.2f} MB a minute")
            if grown.files > 8:
                found.append(f"{kind} has {grown.files} more files open")
        return found


def run_soak(options: SoakOptions) -> Soak:
    """Run on a Ray of its own, which is gone afterwards."""
    with _application(options) as base:
        return asyncio.run(_soak(base, options))


@contextlib.contextmanager
def _application(options: SoakOptions) -> Iterator[str]:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray import serve

    from cp_ray.deployment import app

    config = AppConfig(
        engine="simulated",
        replicas=options.replicas,
        cache_tokens=65_536,
        index_records=2_000,  # full within minutes: what grows then is a leak
        decode_tokens_per_s=200,
        health_check_timeout_s=30,
    )
    folder = tempfile.mkdtemp(prefix="cp-")
    ray.init(
        address="local",
        num_cpus=max(8, options.replicas),
        include_dashboard=False,
        object_store_memory=200 << 20,
        log_to_driver=False,
        _temp_dir=folder,
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(app(config), name=NAME)
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


class _Clients:
    """Sends requests, and keeps what became of them."""

    def __init__(self, base: str, http: httpx.AsyncClient, seed: int) -> None:
        self._url = f"{base}/v1/chat/completions"
        self._http = http
        self._rng = random.Random(seed)
        self._number = 0
        self.open = 0
        self.errors = 0
        self.ttft_s: list[float] = []

    async def ask(self) -> None:
        """One request, streamed; an error is counted."""
        self.open += 1
        began, first = time.perf_counter(), None
        try:
            async with self._http.stream("POST", self._url, json=self._body()) as response:
                async for line in response.aiter_lines():
                    if first is None and '"content":"' in line.replace(" ", ""):
                        first = time.perf_counter() - began
                    self.errors += '"error"' in line
                self.errors += response.status_code != 200
        except httpx.HTTPError:
            self.errors += 1
        finally:
            self.open -= 1
            self.ttft_s.append(time.perf_counter() - began if first is None else first)

    def _body(self) -> dict[str, Any]:
        """Half of the documents are popular, the others new: the caches always evict."""
        self._number += 1
        rng = self._rng
        names = [f"popular {int(200 * rng.random() ** 2)}" for _ in range(4)]
        names += [f"new {self._number} {place}" for place in range(2)]
        return {
            "model": "smollm2",
            "messages": [{"role": "user", "content": f"question {self._number}"}],
            "documents": [f"{name} " + "word " * 80 for name in dict.fromkeys(names)],
            "max_tokens": 8,
            "stream": True,
        }

    async def closed(self, clients: int, seconds: float) -> float:
        """Requests a second of so many clients, each of which waits for its answer."""
        end = time.monotonic() + seconds
        sent = 0

        async def client() -> None:
            nonlocal sent
            while time.monotonic() < end:
                await self.ask()
                sent += 1

        await asyncio.gather(*(client() for _ in range(clients)))
        return sent / seconds

    async def steady(self, rate: float, seconds: float) -> int:
        """Open loop, Poisson; returns how many were not sent for want of room."""
        end = due = time.monotonic()
        end += seconds
        late = 0
        tasks: set[asyncio.Task[None]] = set()
        while due < end:
            due += self._rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self.open >= MOST_OPEN:
                late += 1
                continue
            task = asyncio.create_task(self.ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        return late


async def _soak(base: str, options: SoakOptions) -> Soak:
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as http:
        clients = _Clients(base, http, options.seed)
        await clients.closed(2, 3.0)
        rate = options.load * await clients.closed(options.clients, SATURATE_S)
        clients.ttft_s.clear()
        clients.errors = 0
        samples: list[Sample] = []
        sampler = asyncio.create_task(_sample(samples))
        began = time.monotonic()
        late = await clients.steady(max(rate, 0.5), options.seconds)
        seconds = time.monotonic() - began
        sampler.cancel()
    await asyncio.sleep(DRAIN_S)
    state = await _index_state()
    quantiles = statistics.quantiles(clients.ttft_s, n=100)
    return Soak(
        minutes=seconds / 60,
        requests=len(clients.ttft_s),
        requests_per_s=len(clients.ttft_s) / seconds,
        errors=clients.errors,
        late=late,
        ttft_p50_ms=1000 * quantiles[49],
        ttft_p99_ms=1000 * quantiles[98],
        growth=growth(samples),
        redis_keys=await _redis_keys(),
        reserved=int(state["counters"]["reserved"]),
        records=int(state["counters"]["records"]),
    )


async def _sample(samples: list[Sample]) -> None:
    while True:
        samples.append((time.monotonic(), await asyncio.to_thread(sizes, NAME)))
        await asyncio.sleep(SAMPLE_S)


async def _index_state() -> dict[str, Any]:
    import ray

    from cp_ray.named_actor import NAMESPACE, index_prefix, names_with

    names = await asyncio.to_thread(names_with, index_prefix(NAME))
    if not names:
        raise EngineUnavailable("the index actor is gone: nothing can be said of its ledger")
    state: dict[str, Any] = await ray.get_actor(names[0], NAMESPACE).state.remote()
    return state


async def _redis_keys() -> int:
    """Keys of the application; without those of conversations, of which the load has none."""
    from cp_ray.store.client import Store
    from cp_ray.store.embedded_actor import redis_url

    store = await Store.connect(await redis_url(AppConfig(engine="simulated"), NAME), NAME)
    try:
        return await store.count_keys()
    finally:
        await store.close()


def show(soak: Soak, *, as_json: bool) -> int:
    """Print it; 1 when something is not as it must be."""
    from rich.console import Console

    console = Console()
    if as_json:
        console.print_json(msgspec.json.encode(soak).decode())
    else:
        console.print(
            f"{soak.minutes:.1f} minutes, {soak.requests} requests ({soak.requests_per_s:.1f}/s), "
            f"{soak.errors} errors, {soak.late} not sent; TTFT p50 {soak.ttft_p50_ms:.0f} ms, "
            f"p99 {soak.ttft_p99_ms:.0f} ms; after the drain: {soak.redis_keys} keys in Redis, "
            f"{soak.reserved} reserved, {soak.records} records",
            highlight=False,
        )
        for kind, grown in soak.growth.items():
            console.print(
                f"{kind:8} {grown.mb:7.0f} MB, {grown.mb_per_minute:+.2f} "
                f"({grown.plus_minus:.2f}) MB a minute, {grown.files:+d} files",
                highlight=False,
            )
    for fault in soak.faults:
        console.print(f"FAULT {fault}", highlight=False, markup=False)
    return 1 if soak.faults else 0
