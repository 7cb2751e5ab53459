"""`cp-ray bench serve --soak`: does anything grow? The whole application under steady load.

Simulated engines on a Ray of its own. What is bounded by settings is given small bounds (SETTINGS),
and a closed loop fills it before the measurement begins: what grows then is no filling up. The loop
also finds what the machine can do; then requests come at `load` of that, at random times. Sampled
all the while: memory and open files of every process, by kind; engines beside bare replicas of
Serve that are asked as often (soak_control.py). At the end the load drains, and nothing may be
left: no reservation, and no keys but the fixed ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec

from cp_ray.config import AppConfig
from cp_ray.demo.growth import CONTROL, Growth, Sample, growth, sizes
from cp_ray.demo.own_serve import own_serve
from cp_ray.demo.soak_load import Clients
from cp_ray.demo.soak_state import Fills, fills, index_state, redis_keys
from cp_ray.store.connection import MAX_CONNECTIONS

NAME = "soak"
SATURATE_S, SAMPLE_S, WARM_STEP_S = 20.0, 5.0, 15.0
SETTINGS: dict[str, Any] = {
    "cache_tokens": 131_072,
    "index_records": 200,
    "tokenizer_cache_tokens": 200_000,
    "reports_kept": 1000,
    "conversation_ttl_s": 20,
}
"""Sizes that steady load fills within minutes; the rest are the defaults."""
DRAIN_S = 1.5 * SETTINGS["conversation_ttl_s"]
EVENTS = "RAY_task_events_max_num_status_events_buffer_on_worker"
"""Ray's own memory of calls, for `ray list tasks`: 5 MB in whoever makes some 15,000, if left."""
MOST_LATE = 0.01
"""Share of requests that may find no room, or the load was no longer the one that was asked for."""
MOST_FILES = MAX_CONNECTIONS + 8
"""Open files more: a burst fills the pool of connections to Redis, which stays."""
RAYS_OWN = ("proxy", CONTROL)
"""Shown, and no fault of this application's."""
FIXED_KEYS = 8
"""Streams, journal, snapshot and counter; whatever the traffic, there are no more after it."""


class SoakOptions(msgspec.Struct, frozen=True):
    """seconds: of measured load. load: share of what the closed loop reached. clients: in it.

    warm_s: of a closed loop before it, at most; less where all is full earlier. settle_s: of the
    load before it is measured: tables are made anew, and allocators find their size.
    """

    seconds: float = 600.0
    replicas: int = 2
    clients: int = 16
    load: float = 0.8
    seed: int = 0
    warm_s: float = 240.0
    settle_s: float = 420.0


class Soak(msgspec.Struct, frozen=True):
    """The report. late: requests that found MOST_OPEN under way and were not sent.

    control_faults: calls of the control that failed.
    full_before, full_after: of what traffic fills, at both ends of the measurement, the entries
    there and the most there can be.
    """

    warm_minutes: float
    minutes: float
    requests: int
    requests_per_s: float
    errors: int
    late: int
    control_faults: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    growth: dict[str, Growth]
    full_before: Fills
    full_after: Fills
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
        if self.control_faults > MOST_LATE * self.requests:
            found.append(
                f"{self.control_faults} calls of the control failed: it was not asked as often as "
                "the engines, which look as if they grew"
            )
        for kind, grown in self.growth.items():
            if kind in RAYS_OWN:
                continue
            if grown.verdict == "grows":
                found.append(f"{kind} grows by {grown.mb_per_minute:.2f} MB a minute")
            if grown.verdict == "not sure":
                found.append(f"{kind} may grow or not: measure for longer, or where it is quieter")
            if grown.files > MOST_FILES:
                found.append(f"{kind} has {grown.files} more files open")
        return found


def run_soak(options: SoakOptions) -> Soak:
    """Run on a Ray of its own, which is gone afterwards."""
    with _application(options) as base:
        return asyncio.run(_soak(base, options))


@contextlib.contextmanager
def _application(options: SoakOptions) -> Iterator[str]:
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # as docs/operations.md advises
    os.environ.setdefault(EVENTS, "1000")
    from ray import serve

    from cp_ray.demo.soak_control import start_control
    from cp_ray.deployment import app

    config = AppConfig(
        engine="simulated",
        replicas=options.replicas,
        decode_tokens_per_s=200,
        health_check_timeout_s=30,
        **SETTINGS,
    )
    with own_serve(max(8, options.replicas), memory_mb=200) as base:
        serve.run(app(config), name=NAME)
        start_control(options.replicas)
        yield base


async def _soak(base: str, options: SoakOptions) -> Soak:
    from cp_ray.demo.soak_control import control

    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as http:
        clients = Clients(base, http, options.seed, control())
        warm_s, full = await _warm(clients, options.clients, options.warm_s)
        # Now, when all is full: an empty application is faster.
        limit = await clients.closed(options.clients, SATURATE_S)
        rate = max(options.load * limit, 0.5)
        await clients.steady(rate, options.settle_s)
        clients.forget()
        samples: list[Sample] = []
        sampler = asyncio.create_task(_sample(samples))
        began = time.monotonic()
        late = await clients.steady(rate, options.seconds)
        seconds = time.monotonic() - began
        sampler.cancel()
        full_after = await fills(NAME)
    await asyncio.sleep(DRAIN_S)
    counters = (await index_state(NAME))["counters"]
    quantiles = statistics.quantiles(clients.ttft_s, n=100)
    return Soak(
        warm_minutes=warm_s / 60,
        minutes=seconds / 60,
        requests=len(clients.ttft_s),
        requests_per_s=len(clients.ttft_s) / seconds,
        errors=clients.errors,
        late=late,
        control_faults=clients.faults_beside,
        ttft_p50_ms=1000 * quantiles[49],
        ttft_p99_ms=1000 * quantiles[98],
        growth=growth(samples, 60 * len(clients.ttft_s) / seconds),
        full_before=full,
        full_after=full_after,
        redis_keys=await redis_keys(NAME),
        reserved=int(counters["reserved"]),
        records=int(counters["records"]),
    )


async def _warm(clients: Clients, count: int, most_s: float) -> tuple[float, Fills]:
    """A closed loop until all that it fills has been full once; seconds, and how full it is."""
    began = time.monotonic()
    missing: set[str] | None = None
    full: Fills = {}
    while missing != set() and time.monotonic() - began < most_s:
        await clients.closed(count, min(WARM_STEP_S, most_s))
        full = await fills(NAME)
        now = {name for name, (held, most) in full.items() if held < 0.95 * most}
        missing = now if missing is None else missing & now
    return time.monotonic() - began, full


async def _sample(samples: list[Sample]) -> None:
    while True:
        samples.append((time.monotonic(), await asyncio.to_thread(sizes, NAME)))
        await asyncio.sleep(SAMPLE_S)


def show(soak: Soak, *, as_json: bool) -> int:
    """Print it; 1 when something is not as it must be."""
    from rich.console import Console

    console = Console()
    if as_json:
        console.print_json(msgspec.json.encode(soak).decode())
    else:
        console.print(f"settings: {SETTINGS}", highlight=False, markup=False)
        for name, (held, most) in soak.full_before.items():
            after = soak.full_after[name][0]
            console.print(f"{name:40} {held:8} {after:8} of {most:8}", highlight=False)
        console.print(
            f"{soak.warm_minutes:.1f} minutes until what traffic fills was full (above: then, at "
            f"the end, at most); {soak.minutes:.1f} minutes measured, {soak.requests} requests "
            f"({soak.requests_per_s:.1f}/s), "
            f"{soak.errors} errors, {soak.late} not sent, {soak.control_faults} of the control "
            f"failed; TTFT p50 {soak.ttft_p50_ms:.0f} ms, "
            f"p99 {soak.ttft_p99_ms:.0f} ms; after the drain: {soak.redis_keys} keys in Redis, "
            f"{soak.reserved} reserved, {soak.records} records",
            highlight=False,
        )
        for kind, grown in soak.growth.items():
            console.print(
                f"{kind:8} {grown.mb:7.0f} MB, {grown.mb_per_minute:+.2f} "
                f"({grown.plus_minus:.2f}) MB a minute"
                f"{f' more than {grown.than}' if grown.than else ''}, {grown.files:+d} files, "
                f"at least {max(0.0, grown.least_bytes):.0f} bytes a request: {grown.verdict}",
                highlight=False,
            )
    beside = Console(stderr=as_json)  # JSON stands alone
    for fault in soak.faults:
        beside.print(f"FAULT {fault}", highlight=False, markup=False)
    return 1 if soak.faults else 0
