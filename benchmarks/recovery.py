"""How fast the index is as good as before after a kill -9: `python -m benchmarks.recovery`.

A real index actor, real Redis, real reporters; the engines are stand-ins that hold what they are
told. The index learns RECORDS requests, is killed, and while it is dead the engines lose some of
what they held. Then the same probes are planned round after round, PAUSE_S apart because each
costs the index time that recovery needs: the share of the predicted tokens that is back, how long
after the actor's constructor began, and every prediction compared with what the engines really
hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ray import serve
from tqdm import tqdm

from benchmarks.recovery_traffic import BLOCK, HEAD, K, Traffic, Truth, request_of
from cp_ray.config import AppConfig
from cp_ray.core.types import (
    DumpRequest,
    Eviction,
    PlanRequest,
    ReplicaId,
    RequestId,
    Settled,
    Step,
)
from cp_ray.demo.own_serve import own_serve
from cp_ray.index_actor.client import IndexClient
from cp_ray.store.client import Store
from cp_ray.store.embedded_actor import redis_url
from cp_ray.workers.dump_requests import DumpRequests
from cp_ray.workers.reporter import Reporter

APP = "recovery"
PAGE = 16
BATCH, PROBES, WAIT_S, PAUSE_S = 64, 300, 60.0, 0.2
CONFIG = AppConfig(engine="simulated", plan_deadline_ms=20_000)


class Holder:
    """A replica whose cache is a table: the real reporter and the real answers to dump requests."""

    async def __init__(self) -> None:  # type: ignore[misc]  # Serve awaits it
        self._replica = ReplicaId(serve.get_replica_context().replica_id.unique_id)
        self._held: dict[RequestId, int] = {}
        self._store = await Store.connect(await redis_url(CONFIG, APP), APP)
        self._reporter = Reporter(self._replica, self._store.append_report)
        asked = DumpRequests(self._replica, self._connect, self._answer)
        self._tasks = [
            asyncio.create_task(self._reporter.run()),
            asyncio.create_task(asked.run()),
        ]

    async def _connect(self) -> Store:
        return self._store

    async def _answer(self, request: DumpRequest) -> None:
        if request.rebuild:
            self._held.clear()
            self._reporter.new_epoch()
        else:
            self._reporter.dump(lambda: dict(self._held))

    def record_replica_metadata(self) -> dict[str, int]:
        return {"page_size": PAGE, "capacity_tokens": 1 << 30}

    async def take(self, replica: str, held: dict[RequestId, int]) -> None:
        """Hold these; every replica is told, one is meant."""
        if replica == self._replica:
            self._held |= held

    async def lose(self, replica: str, left: dict[RequestId, int]) -> None:
        if replica != self._replica:
            return
        for request, tokens in left.items():
            if tokens:
                self._held[request] = tokens
            else:
                del self._held[request]
        self._reporter.evicted([Eviction(request, tokens) for request, tokens in left.items()])


async def measure(records: int, replicas: int, seed: int = 0) -> dict[str, Any]:
    """Run once on the Ray that is there; the result of the module's own text."""
    deployment = serve.deployment(Holder).options(
        name="Engine", num_replicas=replicas, ray_actor_options={"num_cpus": 0.1}
    )
    handle = await asyncio.to_thread(serve.run, deployment.bind(), name=APP, route_prefix=None)
    client = IndexClient(APP, CONFIG)
    try:
        client.start()
        await _until(client, lambda state: len(state["replicas"]) == replicas)
        return await _measure(handle, client, records, random.Random(seed))
    finally:
        await client.close()
        await asyncio.to_thread(serve.delete, APP)


async def _measure(
    handle: Any, client: IndexClient, records: int, rng: random.Random
) -> dict[str, Any]:
    traffic, truth = Traffic(rng.randrange(1 << 30), records), Truth()
    await _fill(handle, client, traffic, truth, records)
    await _lose(handle, truth, rng, share=0.1)
    await asyncio.sleep(1)
    probes = [request_of(f"p{number}", traffic.context()) for number in range(PROBES)]
    before = await _probe(client, probes, "before")
    if before is None:
        raise AssertionError("the index must be up before it is killed")
    await _until(client, lambda state: state["counters"]["journaled"] >= records)
    state = await client.state()
    if state is None:
        raise AssertionError("the index must be up before it is killed")
    stored = await _stored_bytes()
    os.kill(state["pid"], signal.SIGKILL)
    killed = time.monotonic()
    await _lose(handle, truth, rng, share=0.01)
    truth.seal()
    up = back = None
    wrong = most = rounds = 0
    expected = sum(step.reused_tokens for step in before)
    while back is None and time.monotonic() - killed < WAIT_S:
        steps = await _probe(client, probes, f"r{rounds}")
        if steps is None:
            await asyncio.sleep(0.01)
            continue
        now = time.monotonic()
        up = up or now
        rounds += 1
        found = sum(step.reused_tokens for step in steps)
        wrong += truth.wrong(steps)
        most = max(most, found)
        if found >= 0.95 * expected:
            back = now
        else:
            await asyncio.sleep(PAUSE_S)
    after = await client.state() or {"counters": {}, "uptime_s": time.monotonic() - killed}
    return {
        "records": records,
        "recalled": after["counters"].get("recalled", 0),
        "stored_mb": round(stored / 1e6, 1),
        "killed_to_first_answer_s": None if up is None else round(up - killed, 2),
        "up_to_95_percent_s": None if back is None else round(after["uptime_s"], 2),
        "recovery_s": round(after.get("recovery_s", 0.0), 2),
        "recovery_cpu_s": round(after.get("recovery_cpu_s", 0.0), 2),
        "load_average": round(os.getloadavg()[0], 1),
        "share_back": round(most / expected, 4),
        "probe_rounds": rounds,
        "wrong_predictions": wrong,
    }


async def _fill(
    handle: Any, client: IndexClient, traffic: Traffic, truth: Truth, records: int
) -> None:
    with tqdm(total=records, desc="records", unit="req", leave=False, mininterval=2) as bar:
        for start in range(0, records, BATCH):
            batch = [
                request_of(f"{start + number:032x}", traffic.context())
                for number in range(min(BATCH, records - start))
            ]
            steps = await client.plan(batch)
            if steps is None:
                raise AssertionError("the index must be up while it learns")
            taken: dict[str, dict[RequestId, int]] = {}
            for step in steps:
                client.feedback(Settled(step.request_id, step.reused_tokens, ok=True))
                truth.took(step)
                held = taken.setdefault(str(step.replica), {})
                held[step.request_id] = truth.held[step.request_id]
            await _all(handle, "take", taken)
            bar.update(len(batch))


async def _lose(handle: Any, truth: Truth, rng: random.Random, share: float) -> None:
    lost: dict[str, dict[RequestId, int]] = {}
    for name in rng.sample(sorted(truth.held), int(share * len(truth.held))):
        left = rng.choice((0, HEAD + BLOCK * rng.randrange(K)))
        if left >= truth.held[name]:
            continue
        truth.held[name] = left
        lost.setdefault(str(truth.steps[name].replica), {})[name] = left
        if not left:
            del truth.held[name]
    await _all(handle, "lose", lost)


async def _all(handle: Any, method: str, told: dict[str, dict[RequestId, int]]) -> None:
    for replica, values in told.items():
        await handle.broadcast(method, replica, values).results_async()


async def _probe(client: IndexClient, probes: list[PlanRequest], name: str) -> list[Step] | None:
    """Steps of the probes, which leave no trace; None when the index is down."""
    steps: list[Step] = []
    for start in range(0, len(probes), BATCH):
        batch = [
            request_of(f"{name}-{number}", probe.context)
            for number, probe in enumerate(probes[start : start + BATCH], start)
        ]
        planned = await client.plan(batch)
        if planned is None:
            return None
        for step in planned:
            client.feedback(Settled(step.request_id, 0, ok=False))
        steps += planned
    return steps


async def _until(client: IndexClient, true: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        state = await client.state()
        if state is not None and true(state):
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not happen within {WAIT_S} s: {state}")
        await asyncio.sleep(0.05)


async def _stored_bytes() -> int:
    import redis.asyncio as aioredis

    client = aioredis.Redis.from_url(await redis_url(CONFIG, APP))
    try:
        keys = [
            key
            for pattern in ("journal", "snapshot")
            async for key in client.scan_iter(f"cp:{APP}:{pattern}*")
        ]
        return sum([int(await client.memory_usage(key, samples=0) or 0) for key in keys])
    finally:
        await client.aclose()


def main() -> int:
    """Print the result; exit 1 unless 95% came back within 5 s and nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=4)
    args = parser.parse_args()
    with own_serve(8, root=Path(__file__).resolve().parent.parent, proxy=False, memory_mb=1024):
        result = asyncio.run(measure(args.records, args.replicas))
    print(json.dumps(result, indent=1))
    back = result["up_to_95_percent_s"]
    return 0 if back is not None and back <= 5 and not result["wrong_predictions"] else 1


if __name__ == "__main__":
    sys.exit(main())
