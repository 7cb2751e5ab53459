"""The second half of `index_rate`: the real index actor on real Ray, Serve and Redis.

Replicas are stand-ins of Serve that say who they are; their real reporters run in this process, as
does the ingress' client. Beside it an actor that answers the same bytes and does nothing: what it
takes is Ray's share.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import ray
from ray import serve
from tqdm import tqdm

from benchmarks.index_traffic import Fleet, requests
from cp_ray.config import AppConfig
from cp_ray.core.types import PlanRequest, ReplicaId, Step
from cp_ray.demo.own_serve import own_serve
from cp_ray.index_actor.client import IndexClient
from cp_ray.store import wire
from cp_ray.store.client import Store
from cp_ray.store.embedded_actor import redis_url
from cp_ray.workers.reporter import Reporter

APP, K, PAGE, WAIT_S = "index_rate", 15, 16, 120.0
SLACK = 4096
"""Records beyond those stored: reports are on their way meanwhile."""
ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")


class Replica:
    """What the index asks of an engine."""

    def record_replica_metadata(self) -> dict[str, int]:
        return {"page_size": PAGE, "capacity_tokens": 1 << 30, "step_tokens": 8192}


class Bare:
    """Answers what it was given."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def plan(self, payload: bytes) -> bytes:
        return self._answer if payload else b""

    async def pid(self) -> int:
        return os.getpid()


class Load:
    """Windows through the client, `in_flight` at a time, with feedback and evictions."""

    def __init__(self, client: IndexClient, reporters: dict[str, Reporter], records: int) -> None:
        self._client = client
        self._reporters = reporters
        self._records = records
        self._requests = requests(K, 0)
        self._fleet = Fleet()
        self.entries = 0
        self.last: tuple[list[PlanRequest], list[Step]] = ([], [])

    async def run(self, count: int, window: int, in_flight: int, name: str) -> float:
        """Seconds that so many requests took. Raises AssertionError when one passed through."""
        windows = iter([list(islice(self._requests, window)) for _ in range(count // window)])
        began = time.monotonic()
        with tqdm(total=count, desc=name, unit="req", leave=False, mininterval=2) as bar:
            await asyncio.gather(*[self._work(windows, bar) for _ in range(in_flight)])
        return time.monotonic() - began

    async def _work(self, windows: Iterator[list[PlanRequest]], bar: Any) -> None:
        for window in windows:
            steps = await self._client.plan(window)
            if steps is None:
                raise AssertionError("the index was down or late")
            self.last = window, steps
            for feedback in self._fleet.sent(steps):
                self._client.feedback(feedback)
            for replica, entries in self._fleet.lost(self._records).items():
                self._reporters[replica].evicted(entries)
                self.entries += len(entries)
            bar.update(len(window))


def through_actor(records: int, replicas: int, count: int, in_flight: int) -> dict[str, float]:
    """Rates, and CPU per request of the actor, the client, and Ray alone in an actor's process."""
    with own_serve(8, root=ROOT, proxy=False, memory_mb=1024):
        return asyncio.run(_measure(records, replicas, count, in_flight))


async def _measure(records: int, replicas: int, count: int, in_flight: int) -> dict[str, float]:
    config = AppConfig(engine="simulated", plan_deadline_ms=60_000, index_records=records + SLACK)
    deployment = serve.deployment(Replica).options(
        name="Engine", num_replicas=replicas, ray_actor_options={"num_cpus": 0.01}
    )
    await asyncio.to_thread(serve.run, deployment.bind(), name=APP, route_prefix=None)
    client = IndexClient(APP, config)
    client.start()
    names = await _replicas(client, replicas)
    store = await Store.connect(await redis_url(config, APP), APP)
    reporters = {name: Reporter(ReplicaId(name), store.append_report) for name in names}
    tasks = [asyncio.create_task(reporter.run()) for reporter in reporters.values()]
    try:
        load = Load(client, reporters, records)
        await load.run(records + 2048, 64, 2, "fill")
        await load.run(max(count // 4, 3200), 32, in_flight, "warm")
        before = await _state(client)
        cpu, own, load.entries = _cpu_s(before["pid"]), time.process_time(), 0
        seconds = await load.run(count, 32, in_flight, "measured")
        own = time.process_time() - own
        cpu = _cpu_s(before["pid"]) - cpu
        after = await _state(client)
        bare = await _bare(load.last, count // 32, in_flight)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        await store.close()
    counted = {
        name: after["counters"].get(name, 0) - before["counters"].get(name, 0)
        for name in ("planned", "evictions", "unknown_evictions", "passed_through")
    }
    return {
        "planned_per_s": count / seconds,
        "eviction_entries_per_s": load.entries / seconds,
        "actor_cpu_us": 1e6 * cpu / count,
        "client_cpu_us": 1e6 * own / count,
        **bare,
        "ray_share_of_actor": bare["ray_cpu_us"] / (1e6 * cpu / count),
        "stored": after["counters"]["records"],
        **counted,
    }


async def _bare(
    last: tuple[list[PlanRequest], list[Step]], windows: int, in_flight: int
) -> dict[str, float]:
    """As many plans by an actor that does nothing."""
    payload, answer = wire.encode(last[0]), wire.encode(last[1])
    bare: Any = ray.remote(Bare).options(num_cpus=0.1).remote(answer)
    pid = await bare.pid.remote()
    left = iter(range(windows))

    async def work() -> None:
        for _ in left:
            await bare.plan.remote(payload)

    await asyncio.gather(*[work() for _ in range(in_flight)])
    left, cpu, began = iter(range(windows)), _cpu_s(pid), time.monotonic()
    await asyncio.gather(*[work() for _ in range(in_flight)])
    seconds = time.monotonic() - began
    count = windows * len(last[0])
    return {
        "ray_alone_per_s": count / seconds,
        "ray_cpu_us": 1e6 * (_cpu_s(pid) - cpu) / count,
    }


async def _replicas(client: IndexClient, count: int) -> list[str]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        state = await _state(client)
        if len(state["replicas"]) == count and state["redis_connected"]:
            return list(state["replicas"])
        await asyncio.sleep(0.1)
    raise AssertionError(f"not {count} replicas within {WAIT_S} s")


async def _state(client: IndexClient) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        state = await client.state()
        if state is not None:
            return state
        await asyncio.sleep(0.1)
    raise AssertionError(f"no index answered within {WAIT_S} s")


def _cpu_s(pid: int) -> float:
    """Of a process since it began, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
