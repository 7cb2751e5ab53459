"""A real trace through 16 and 32 simulated engines behind real Serve, HTTP and Redis.

    python -m benchmarks.live --replicas 16,32 [--requests 600] [--load 0.8]

An emulated cluster: a head and hosts of four replicas, all on this machine. The same requests at
the same moments (Poisson) twice: `x-cp-ray-reuse: plain`, which is Serve's own balancing, then with
everything on; all caches are emptied between. Hits are the engines' own count.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import httpx
import msgspec
import psutil

from benchmarks.data import folder
from benchmarks.live_load import Contexts, Done, ask, bodies, made
from cp_ray.config import AppConfig
from cp_ray.core.story import quantile
from cp_ray.demo.own_serve import own_cluster, start_serve
from cp_ray.replay.trace import read_trace
from tests.e2e.support import index_state, until

ROOT = Path(__file__).resolve().parents[1]
NAME, PER_HOST, WAIT_S = "live", 4, 300.0
ARMS = ("plain", "full")


class Options(msgspec.Struct, frozen=True):
    """load: of the rate at which all replicas prefill all the time, with nothing reused."""

    trace: Path
    requests: int
    load: float
    cache_tokens: int
    prefill_tokens_per_s: float
    seed: int


class Fleet(msgspec.Struct, frozen=True):
    """A running application, and what is sent to it."""

    base: str
    replicas: int
    rate_per_s: float
    contexts: Contexts
    seed: int


class Arm(msgspec.Struct, frozen=True):
    """One pass. most, least: requests of the busiest and of the idlest replica; tokens as well."""

    name: str
    replicas: int
    rate_per_s: float
    answered: int
    failed: int
    failures: tuple[str, ...]
    hit_ratio: float
    requests_least_most: tuple[int, int]
    prefilled_least_most: tuple[int, int]
    index_ms_p50_p99: tuple[float, float]
    issued_ms_p50_p99: tuple[float, float]
    ttft_s_mean_p50_p99: tuple[float, float, float]
    cpu_share: float


def main() -> int:
    """Print a table, or JSON; 1 when a request failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", default="16,32")
    parser.add_argument("--trace", type=Path, default=folder() / "multihoprag")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--cache-tokens", type=int, default=100_000)
    parser.add_argument("--prefill-rate", type=float, default=6000.0, help="tokens/s of a replica")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    options = Options(
        args.trace, args.requests, args.load, args.cache_tokens, args.prefill_rate, args.seed
    )
    arms = [arm for count in args.replicas.split(",") for arm in run(int(count), options)]
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(arms), indent=1).decode())
    else:
        show(arms)
    return 1 if any(arm.failed for arm in arms) else 0


def run(replicas: int, options: Options) -> list[Arm]:
    """Both arms on a cluster of their own."""
    from ray import serve

    from cp_ray.deployment import app

    config = AppConfig(
        engine="simulated",
        model="sim",
        replicas=replicas,
        cpus_per_replica=1,
        cache_tokens=options.cache_tokens,
        prefill_tokens_per_s=options.prefill_tokens_per_s,
        health_check_period_s=10,
    )
    hosts = -(-replicas // PER_HOST)
    with own_cluster(hosts, PER_HOST, root=ROOT):
        base = start_serve()
        try:
            serve.run(app(config), name=NAME)
            until(lambda: httpx.get(f"{base}/readyz", timeout=60).status_code == 200, WAIT_S)
            until(lambda: len(index_state(NAME)["replicas"]) == replicas, WAIT_S)
            return asyncio.run(_arms(base, replicas, options))
        finally:
            serve.shutdown()


async def _arms(base: str, replicas: int, options: Options) -> list[Arm]:
    from ray import serve

    trace = read_trace(options.trace, requests=options.requests) if options.trace.exists() else None
    contexts = (
        [{str(b): n for b, n in request.lengths.items()} for request in trace.requests]
        if trace
        else made(options.requests, options.seed)
    )
    tokens = statistics.fmean(sum(context.values()) for context in contexts)
    rate = options.load * replicas * options.prefill_tokens_per_s / tokens
    fleet = Fleet(base, replicas, rate, contexts, options.seed)
    arms = []
    for name in ARMS:
        await serve.get_deployment_handle("Engine", NAME).broadcast("reset_cache").results_async()
        await asyncio.sleep(2)  # the index hears of it
        arms.append(await _arm(fleet, name))
    return arms


async def _arm(fleet: Fleet, name: str) -> Arm:
    rng = random.Random(fleet.seed)
    before, began = _busy_s(), time.monotonic()
    timeout, connector = aiohttp.ClientTimeout(WAIT_S), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        tasks = []
        due = time.monotonic()
        for body in bodies(fleet.contexts, fleet.seed):
            due += rng.expovariate(fleet.rate_per_s)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(ask(http, fleet.base, name, body)))
        answers = await asyncio.gather(*tasks)
    share = (_busy_s() - before) / ((time.monotonic() - began) * (psutil.cpu_count() or 1))
    done = [answer for answer in answers if isinstance(answer, Done)]
    failures = [answer for answer in answers if isinstance(answer, str)]
    asked = Counter(answer.replica for answer in done)
    prefilled: Counter[str] = Counter()
    for answer in done:
        prefilled[answer.replica] += answer.prompt_tokens - answer.cached_tokens
    if not done:
        raise SystemExit(f"no request was answered: {failures[:3]}")
    idle = len(asked) < fleet.replicas
    return Arm(
        name=name,
        replicas=fleet.replicas,
        rate_per_s=fleet.rate_per_s,
        answered=len(done),
        failed=len(failures),
        failures=tuple(failures[:3]),
        hit_ratio=sum(a.cached_tokens for a in done) / sum(a.prompt_tokens for a in done),
        requests_least_most=(0 if idle else min(asked.values()), max(asked.values())),
        prefilled_least_most=(0 if idle else min(prefilled.values()), max(prefilled.values())),
        index_ms_p50_p99=_quantiles([a.index_ms for a in done]),
        issued_ms_p50_p99=_quantiles([a.issued_ms for a in done]),
        ttft_s_mean_p50_p99=(
            statistics.fmean(a.ttft_s for a in done),
            *_quantiles([a.ttft_s for a in done]),
        ),
        cpu_share=share,
    )


def _quantiles(values: Sequence[float]) -> tuple[float, float]:
    return quantile(values, 0.5) or 0.0, quantile(values, 0.99) or 0.0


def _busy_s() -> float:
    """Seconds that this machine's CPUs have worked, whoever for."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def show(arms: Sequence[Arm]) -> None:
    """A table in Markdown."""
    print(
        "| replicas | reuse | requests/s | answered / failed | hit ratio | requests of a replica "
        "| prefilled by one, thousand tokens | index p50 / p99, ms | TTFT mean / p50 / p99, s "
        "| CPU |"
    )
    print("|---:|---|---:|---|---:|---|---|---|---|---:|")
    for a in arms:
        least, most = a.prefilled_least_most
        mean, middle, late = a.ttft_s_mean_p50_p99
        index = f"{a.index_ms_p50_p99[0]:.1f} / {a.index_ms_p50_p99[1]:.1f}"
        print(
            f"| {a.replicas} | {a.name} | {a.rate_per_s:.1f} | {a.answered} / {a.failed} "
            f"| {a.hit_ratio:.3f} | {a.requests_least_most[0]} to {a.requests_least_most[1]} "
            f"| {least / 1000:.0f} to {most / 1000:.0f} | {index if a.name != 'plain' else ''} "
            f"| {mean:.3f} / {middle:.3f} / {late:.3f} | {a.cpu_share:.0%} |"
        )
    for failure in [text for a in arms for text in a.failures]:
        print(f"FAILED {failure}")


if __name__ == "__main__":
    sys.exit(main())
