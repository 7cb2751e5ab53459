"""`cp-ray bench index`: what the index costs per request, at n stored contexts of k blocks.

Workload: Zipf over 600 blocks, seeded, every id a string of its own as when it came by wire. One
thread of this process, garbage collector as shipped. Medians and percentiles are taken over
PROBES requests, and the best of RUNS such runs is reported: the machine is never quiet.
"""

from __future__ import annotations

import random
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice

import msgspec
from tqdm import tqdm

from cp_ray.compiling import is_compiled
from cp_ray.core.dedup import deduplicate
from cp_ray.core.index import ContextIndex
from cp_ray.core.merging import FAST, merge, steps
from cp_ray.core.path import best_path
from cp_ray.core.record import record_of
from cp_ray.core.search import exact_search
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
from cp_ray.progress import watched

BLOCKS, SKEW, SIZE = 600, 0.9, 600
PROBES, RUNS = 500, 5
WEIGHED = 20_000
"""Contexts at most whose memory is weighed: tracing every allocation triples the time."""
BUILD_UP_TO = 100_000
REPLICA, HEAD = ReplicaId("r0"), HeadId("bench")
PAPER_US = {"search": 68.0, "order": 47.0, "dedup": 144.0, "plan": 259.0}
"""Table 6: 2,000 requests, k = 15, an A6000 host; plan is the sum."""
PAPER_BUILD_S = {2000: "8 (GPU 0.82)", 12_000: "- (GPU 7.48)"}
"""Seconds, table 3c."""


class IndexFigures(msgspec.Struct, frozen=True):
    """Microseconds; build_s: seconds of `merge` over n contexts, None above BUILD_UP_TO.

    build_rss_mb, peak_rss_mb: most of the process so far, after building and after planning.
    insert: record, tree and list of a planned request.
    """

    n: int
    k: int
    build_s: float | None
    build_rss_mb: float | None
    peak_rss_mb: float
    search_us_p50: float
    order_us_p50: float
    dedup_us_p50: float
    insert_us_p50: float
    plan_us_p50: float
    plan_us_p99: float
    plan_us_max: float
    evict_us_p50: float
    bytes_per_context: float


def bench_index(sizes: Sequence[int], k: int = 15, seed: int = 0) -> list[IndexFigures]:
    """Build offline at each of `sizes`, then fill one index to each in turn and time it there."""
    asked = sorted(set(sizes))
    built = {n: (_build_s(n, k, seed), peak_rss_mb()) for n in asked if n <= BUILD_UP_TO}
    bench = _Bench(k, seed, max_records=asked[-1] + PROBES)
    figures = []
    for n in asked:
        bench.fill_to(n)
        build_s, build_rss_mb = built.get(n, (None, None))
        weight = _bytes_per_context(min(n, WEIGHED), k, seed)
        figures.append(bench.figures(build_s, build_rss_mb, weight))
    return figures


def as_table(figures: Sequence[IndexFigures]) -> str:
    """Components as rows (the paper's table 6), sizes as columns."""
    lines = [f"{'microseconds, p50':<26}{'paper, 2,000':>14}"]
    lines[0] += "".join(f"{one.n:>14,}" for one in figures)
    for name in ("search", "order", "dedup", "insert", "plan", "evict"):
        paper = f"{PAPER_US[name]:.0f}" if name in PAPER_US else "-"
        title = "plan, all of these" if name == "plan" else name
        values = [getattr(one, f"{name}_us_p50") for one in figures]
        lines.append(f"{title:<26}{paper:>14}" + "".join(f"{value:>14.1f}" for value in values))
    for title, field, form in (
        ("plan p99", "plan_us_p99", ",.0f"),
        ("plan, slowest", "plan_us_max", ",.0f"),
        ("bytes per context", "bytes_per_context", ",.0f"),
        ("peak RSS, MB", "peak_rss_mb", ",.0f"),
    ):
        values = [getattr(one, field) for one in figures]
        lines.append(f"{title:<26}{'-':>14}" + "".join(f"{value:>14{form}}" for value in values))
    for one in figures:
        if one.build_s is not None:
            paper = PAPER_BUILD_S.get(one.n, "-")
            lines.append(
                f"build {one.n:,} contexts: {one.build_s:.2f} s, {one.build_rss_mb:,.0f} MB "
                f"(paper: {paper} s)"
            )
    lines.append(f"planner: {'compiled' if is_compiled() else 'plain Python'}")
    return "\n".join(lines)


class _Bench:
    """An index that is filled further and further."""

    def __init__(self, k: int, seed: int, max_records: int) -> None:
        self._k = k
        self._index = ContextIndex(max_records=max_records)
        self._index.set_replicas([ReplicaInfo(REPLICA, 16, 1 << 40)])
        self._contexts = contexts(k, seed)
        self._stored = 0
        self._named = 0
        self._now = 0.0
        self._reports = 0

    def fill_to(self, n: int) -> None:
        with tqdm(total=n, initial=self._stored, desc="fill", disable=None, delay=1) as progress:
            while self._stored < n:
                request = self._next()
                self._plan(request)
                self._index.hear(Settled(request.request_id, 0, ok=True), self._now)
                self._stored += 1
                progress.update()

    def figures(
        self, build_s: float | None, build_rss_mb: float | None, weight: float
    ) -> IndexFigures:
        runs = [self._run() for _ in range(RUNS)]
        best = {name: min(_share(run[name], 0.5) for run in runs) for name in runs[0]}
        return IndexFigures(
            n=self._stored,
            k=self._k,
            build_s=build_s,
            build_rss_mb=build_rss_mb,
            peak_rss_mb=peak_rss_mb(),
            search_us_p50=best["search"],
            order_us_p50=best["order"],
            dedup_us_p50=best["dedup"],
            insert_us_p50=best["insert"],
            plan_us_p50=best["plan"],
            plan_us_p99=min(_share(run["plan"], 0.99) for run in runs),
            plan_us_max=max(max(run["plan"]) for run in runs),
            evict_us_p50=best["evict"],
            bytes_per_context=weight,
        )

    def _run(self) -> dict[str, list[float]]:
        """PROBES requests planned and evicted again, then the same in parts."""
        probes = [self._next() for _ in range(PROBES)]
        taken = {"plan": _times([partial(self._plan, probe) for probe in probes])}
        for probe in probes:
            self._index.hear(Settled(probe.request_id, 0, ok=True), self._now)
        reports = [self._eviction(probe) for probe in probes]
        taken["evict"] = _times([partial(self._index.apply, report) for report in reports])
        memory, orders = self._index.memory, self._index.reuse.rest_order
        root = memory.trees[HEAD].root
        for part in ("search", "order", "dedup", "insert"):
            taken[part] = []
        for probe in probes:
            context = probe.context
            tokens = dict(zip(context, probe.block_tokens, strict=True))
            search = partial(exact_search, root, context, tokens, remembered=orders.popular)
            taken["search"] += _times([search])
            path = best_path(search(), 1, orders.trust)
            arrange = partial(orders.arrange, context, path.prefix, tokens)
            taken["order"] += _times([arrange])
            planned = arrange()
            record = record_of(probe, planned, tokens, REPLICA, 0)
            insert = partial(memory.remember, probe.request_id, record, planned, 1)
            taken["insert"] += _times([insert])
            memory.remove(probe.request_id)
            seen = set(context[::2])
            taken["dedup"] += _times([partial(deduplicate, context, seen)])
        return taken

    def _next(self) -> PlanRequest:
        self._named += 1
        name = RequestId(f"{self._named:032x}")
        context = next(self._contexts)
        return PlanRequest(name, HEAD, 20, context, (SIZE,) * self._k, 40)

    def _plan(self, request: PlanRequest) -> None:
        self._now += 1.0
        self._index.plan([request], self._now)

    def _eviction(self, probe: PlanRequest) -> EvictionReport:
        self._reports += 1
        gone = (Eviction(probe.request_id, 0),)
        return EvictionReport(REPLICA, 0, self._reports - 1, gone)


def peak_rss_mb() -> float:
    """Of this process since it began."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _build_s(n: int, k: int, seed: int) -> float:
    stored = list(islice(contexts(k, seed), n))
    tokens = dict.fromkeys((block for context in stored for block in context), SIZE)
    merge(stored[:10], tokens)  # loads the compiled code
    taken = []
    for _ in range(RUNS if n <= 2000 else 1):
        with watched(f"build {n:,}", steps(n, FAST)) as done:
            started = time.perf_counter()
            merge(stored, tokens, FAST, done=done)
            taken.append(time.perf_counter() - started)
    return min(taken)


def _bytes_per_context(n: int, k: int, seed: int) -> float:
    """Of everything the index keeps, ids included; by tracing allocations."""
    tracemalloc.start()
    bench = _Bench(k, seed, n)
    before = tracemalloc.get_traced_memory()[0]
    bench.fill_to(n)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return taken / n


def contexts(k: int, seed: int) -> Iterator[Context]:
    """The workload, without end; ids are new strings each time."""
    rng = random.Random(seed)
    numbers = range(BLOCKS)
    upto = list(accumulate(1 / (rank + 1) ** SKEW for rank in numbers))
    while True:
        chosen: dict[int, None] = {}
        while len(chosen) < k:
            chosen.update(dict.fromkeys(rng.choices(numbers, cum_weights=upto, k=k - len(chosen))))
        yield tuple(BlockId(f"{number:032x}") for number in chosen)


def _times(operations: Sequence[Callable[[], object]]) -> list[float]:
    """Microseconds of each call."""
    taken = []
    for operation in operations:
        started = time.perf_counter()
        operation()
        taken.append((time.perf_counter() - started) * 1e6)
    return taken


def _share(taken: Sequence[float], share: float) -> float:
    return sorted(taken)[int(len(taken) * share)]
