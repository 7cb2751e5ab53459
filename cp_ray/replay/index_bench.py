"""`cp-ray bench index`: what the index costs per request, at n stored contexts of k blocks.

Workload: Zipf over 600 blocks, seeded. Every figure is measured in this process, one thread.
"""

from __future__ import annotations

import random
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable

import msgspec

from cp_ray.core.dedup import deduplicate
from cp_ray.core.index import ContextIndex
from cp_ray.core.merging import merge
from cp_ray.core.ordering import order
from cp_ray.core.search import exact_search
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import (
    BlockId,
    Context,
    Eviction,
    EvictionReport,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
)

BLOCKS, SKEW, REPLICA, PROBES = 600, 0.9, ReplicaId("r0"), 500
HEAD = HeadId("bench")


class IndexFigures(msgspec.Struct, frozen=True):
    """Medians in microseconds; build_s for `n` contexts by `merge`."""

    n: int
    k: int
    build_s: float
    peak_rss_mb: float
    search_us_p50: float
    order_us_p50: float
    dedup_us_p50: float
    plan_us_p50: float
    plan_us_p99: float
    evict_us_p50: float
    bytes_per_context: float


def bench_index(n: int = 2000, k: int = 15, seed: int = 0) -> IndexFigures:
    """Fill an index with `n` contexts and time each operation on `PROBES` more."""
    contexts = _contexts(n + PROBES, k, seed)
    tokens = dict.fromkeys((block for context in contexts for block in context), 600)
    merge(contexts[:10], tokens)  # loads the compiled code
    started = time.perf_counter()
    merge(contexts[:n], tokens)
    build_s = time.perf_counter() - started
    tracemalloc.start()
    index = _filled(contexts[:n], k)
    bytes_per_context = tracemalloc.get_traced_memory()[0] / n
    tracemalloc.stop()
    probes = contexts[n:]
    tree = ContextTree()
    for number, context in enumerate(contexts[:n]):
        tree.insert(RequestId(str(number)), context, 1)
    sizes = [dict.fromkeys(context, 600) for context in probes]
    plan = _times(lambda i: index.plan([_request(n + i, probes[i], k)], float(n + i)), len(probes))
    evict = _times(lambda i: index.apply(_eviction(i, n + i)), len(probes))
    search = _times(lambda i: exact_search(tree.root, probes[i], sizes[i]), len(probes))
    ordering = _times(lambda i: order(probes[i], probes[i][k // 2 : k // 2 + 3]), len(probes))
    seen = set(contexts[0]) | set(contexts[1])
    dedup = _times(lambda i: deduplicate(probes[i], seen), len(probes))
    return IndexFigures(
        n=n,
        k=k,
        build_s=build_s,
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        search_us_p50=statistics.median(search),
        order_us_p50=statistics.median(ordering),
        dedup_us_p50=statistics.median(dedup),
        plan_us_p50=statistics.median(plan),
        plan_us_p99=sorted(plan)[int(len(plan) * 0.99)],
        evict_us_p50=statistics.median(evict),
        bytes_per_context=bytes_per_context,
    )


def _contexts(count: int, k: int, seed: int) -> list[Context]:
    rng = random.Random(seed)
    names = [BlockId(f"{number:032x}") for number in range(BLOCKS)]
    weights = [1 / (rank + 1) ** SKEW for rank in range(BLOCKS)]
    contexts = []
    for _ in range(count):
        chosen: dict[BlockId, None] = {}
        while len(chosen) < k:
            chosen.setdefault(rng.choices(names, weights)[0])
        contexts.append(tuple(chosen))
    return contexts


def _filled(contexts: list[Context], k: int) -> ContextIndex:
    index = ContextIndex()
    index.set_replicas([ReplicaInfo(REPLICA, 16, 1 << 30)])
    for number, context in enumerate(contexts):
        index.plan([_request(number, context, k)], float(number))
        index.hear(Settled(RequestId(f"q{number}"), 0, ok=True), float(number))
    return index


def _request(number: int, context: Context, k: int) -> PlanRequest:
    return PlanRequest(RequestId(f"q{number}"), HEAD, 20, context, (600,) * k, 40)


def _eviction(seq: int, number: int) -> EvictionReport:
    return EvictionReport(REPLICA, 0, seq, (Eviction(RequestId(f"q{number}"), 0),))


def _times(operation: Callable[[int], object], count: int) -> list[float]:
    """Microseconds of each call."""
    taken = []
    for i in range(count):
        started = time.perf_counter()
        operation(i)
        taken.append((time.perf_counter() - started) * 1e6)
    return taken
