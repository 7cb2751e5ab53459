"""`cp-ray bench serve --engine simulated`: what cp_ray adds to a bare Serve application.

Both run side by side on a Ray of their own, behind one proxy, with the same simulated engine, so
fast that the way of a request is what limits them. Load comes in blocks to one and to the other in
turns, at half of what cp_ray can do: pairs of blocks see the same machine. Told apart are the time
inside cp_ray's Router from the body read to the engine call issued (by its own account, the
`timing_ms` of explained answers), the whole way as a client sees it, and CPU per request.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import statistics
import time
from collections.abc import Iterator

import aiohttp
import msgspec
from tqdm import tqdm

from cp_ray.config import AppConfig, DataPlane
from cp_ray.demo import cpu
from cp_ray.demo.bare import bare_app
from cp_ray.demo.echo import echoing
from cp_ray.demo.open_streams import OpenStreams, open_streams
from cp_ray.demo.own_serve import own_serve
from cp_ray.demo.streams import Answer, Bodies, Sender, Texts
from cp_ray.demo.text_work import text_ms

CP_RAY, BARE = "cp", "bare"
CLIENTS, WARM_S, SATURATE_S, IDLE_S, TIMEOUT_S = 16, 4.0, 10.0, 8.0, 300.0
MOST_MEDIAN_MS, MOST_P99_MS, MOST_CPU_RATIO = 3.0, 10.0, 1.25
SETTINGS = {
    "engine": "simulated",
    "model": "sim",
    "replicas": 2,
    "prefill_tokens_per_s": 1_000_000,
    "cpus_per_replica": 0.1,
}


class ServeOptions(msgspec.Struct, frozen=True):
    """pairs: of blocks for each body and text. block_s: of load. load: of cp_ray's own limit.

    streams: to be open at a time; 0 = do not try. data_plane: cp_ray's; with "direct" HAProxy
    stands before both applications, and this process is in `own_serve.direct_environment`.
    """

    sizes: tuple[int, ...] = (2, 60)
    pairs: int = 8
    block_s: float = 8.0
    load: float = 0.5
    streams: int = 4000
    seed: int = 0
    data_plane: DataPlane = "ingress"


class Side(msgspec.Struct, frozen=True):
    """One application's means over its blocks. cpu_ms: per request, by kind of process."""

    ttft_ms: float
    total_ms: float
    cpu_ms: dict[str, float]

    @property
    def cpu_all_ms(self) -> float:
        """Of all processes."""
        return sum(self.cpu_ms.values())


class Cell(msgspec.Struct, frozen=True):
    """One kind of body. inside_*: from the body read to the engine call issued, milliseconds.

    On the direct data plane that is in the Router and in the replica together, without the way
    between. text_cpu_ms: CPU that reading, cutting and tokenizing one such body takes in the
    Router, and in the bare one. echo_ms: median and p99 of a byte to a process that does nothing
    and back, meanwhile: the floor of any plan. added_*: (mean difference, half of its 95% interval)
    over pairs of blocks.
    """

    kilobytes: int
    texts: Texts
    saturation_per_s: float
    rate_per_s: float
    requests: int
    failed: int
    inside_median_ms: float
    inside_p99_ms: float
    stages_median_ms: dict[str, float]
    cp_ray: Side
    bare: Side
    added_ttft_ms: tuple[float, float]
    added_total_ms: tuple[float, float]
    text_cpu_ms: tuple[float, float]
    echo_ms: tuple[float, float]

    @property
    def cpu_ratio(self) -> float:
        """cp_ray to bare, CPU per streamed request."""
        return self.cp_ray.cpu_all_ms / self.bare.cpu_all_ms

    @property
    def cpu_ratio_without_text(self) -> float:
        """The same without what depends on the text."""
        mine, its = self.text_cpu_ms
        return (self.cp_ray.cpu_all_ms - mine) / (self.bare.cpu_all_ms - its)


class ServeBench(msgspec.Struct, frozen=True):
    """The report. idle_cpu: CPU of a second without requests, both applications, taken off."""

    idle_cpu: dict[str, float]
    cells: tuple[Cell, ...]
    streams: OpenStreams | None

    @property
    def faults(self) -> list[str]:
        """Limits that are missed, one line each."""
        found = []
        for cell in self.cells:
            name = f"{cell.kilobytes} KB, {cell.texts} texts"
            if cell.failed:
                found.append(f"{name}: {cell.failed} requests failed")
            if cell.inside_median_ms > MOST_MEDIAN_MS:
                found.append(f"{name}: median inside {cell.inside_median_ms:.2f} ms")
            if cell.inside_p99_ms > MOST_P99_MS:
                found.append(f"{name}: p99 inside {cell.inside_p99_ms:.2f} ms")
            if cell.kilobytes == min(c.kilobytes for c in self.cells) and (
                cell.cpu_ratio_without_text > MOST_CPU_RATIO
            ):
                found.append(f"{name}: {cell.cpu_ratio_without_text:.2f} times the CPU")
        return found + (self.streams.faults if self.streams is not None else [])


def run_serve(options: ServeOptions) -> ServeBench:
    """Run on a Ray of its own, which is gone afterwards."""
    with _applications(options.data_plane) as base:
        idle, cells = asyncio.run(_measure(base, options))
    streams = open_streams(options.streams) if options.streams else None
    return ServeBench(idle, tuple(cells), streams)


@contextlib.contextmanager
def _applications(data_plane: DataPlane) -> Iterator[str]:
    from ray import serve

    from cp_ray.deployment import app

    config = AppConfig.model_validate(SETTINGS | {"data_plane": data_plane})
    with own_serve(8) as base:
        serve.run(bare_app(config), name=BARE, route_prefix=f"/{BARE}")
        serve.run(app(config), name=CP_RAY, route_prefix=f"/{CP_RAY}")
        yield base


async def _measure(base: str, options: ServeOptions) -> tuple[cpu.Taken, list[Cell]]:
    timeout = aiohttp.ClientTimeout(TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        mine, its = Sender(http, f"{base}/{CP_RAY}"), Sender(http, f"{base}/{BARE}")
        for sender in (mine, its):
            await sender.closed(Bodies(2, "new", options.seed), CLIENTS, WARM_S)
        idle = await _idle()
        bench = BenchOfTwo(mine, its, idle, options)
        kinds: list[Texts] = ["new", "known"]
        todo = [(size, texts) for size in options.sizes for texts in kinds]
        with tqdm(todo, unit="cell", disable=None) as bar:
            cells = [await bench.cell(size, texts) for size, texts in bar]
    return idle, cells


async def _idle() -> cpu.Taken:
    """CPU of a second in which nobody asks, by kind."""
    await asyncio.sleep(2)
    before = cpu.taken()
    await asyncio.sleep(IDLE_S)
    spent = cpu.between(before, cpu.taken())
    return {kind: seconds / IDLE_S for kind, seconds in spent.items()}


class _Block(msgspec.Struct, frozen=True):
    answers: list[Answer]
    cpu_s: cpu.Taken

    def mean_ms(self, name: str) -> float:
        return 1000 * statistics.fmean(getattr(answer, name) for answer in self.answers)


class BenchOfTwo:
    """Two applications under the same load in turns. idle: CPU a second that is taken off."""

    def __init__(self, mine: Sender, its: Sender, idle: cpu.Taken, options: ServeOptions) -> None:
        self._mine, self._its, self._idle, self._options = mine, its, idle, options
        self._rng = random.Random(options.seed)

    async def cell(self, kilobytes: int, texts: Texts) -> Cell:
        """Find the first one's limit, then measure both."""
        options = self._options
        bodies = Bodies(kilobytes, texts, options.seed + 1)
        failed = len(self._mine.failed) + len(self._its.failed)
        for sender in (self._mine, self._its):
            await sender.closed(bodies, CLIENTS, WARM_S)
        limit = await self._mine.closed(bodies, CLIENTS, SATURATE_S)
        rate = max(options.load * limit, 0.5)
        mine, its = list[_Block](), list[_Block]()
        async with echoing() as echo_ms:
            await self._pairs(bodies, rate, mine, its)
            echo = sorted(echo_ms)
        timings = [a.explained["timing_ms"] for block in mine for a in block.answers]
        inside = sorted(timing["issued"] + timing.get("routed", 0.0) for timing in timings)
        return Cell(
            kilobytes=kilobytes,
            texts=texts,
            saturation_per_s=limit,
            rate_per_s=rate,
            requests=len(inside),
            failed=len(self._mine.failed) + len(self._its.failed) - failed,
            inside_median_ms=statistics.median(inside),
            inside_p99_ms=_p99(inside),
            stages_median_ms={
                name: statistics.median(timing.get(name, 0.0) for timing in timings)
                for name in timings[-1]
            },
            cp_ray=_side(mine),
            bare=_side(its),
            added_ttft_ms=_added(mine, its, "ttft_s"),
            added_total_ms=_added(mine, its, "total_s"),
            echo_ms=(statistics.median(echo), _p99(echo)),
            text_cpu_ms=text_ms(Bodies(kilobytes, texts, options.seed + 2)),
        )

    async def _pairs(
        self, bodies: Bodies, rate: float, mine: list[_Block], its: list[_Block]
    ) -> None:
        options = self._options
        for pair in range(options.pairs):
            gaps_s = [self._rng.expovariate(rate) for _ in range(round(rate * options.block_s))]
            for sender in (self._mine, self._its)[:: 1 if pair % 2 else -1]:
                block = await self._block(sender, bodies, gaps_s)
                (mine if sender is self._mine else its).append(block)

    async def _block(self, sender: Sender, bodies: Bodies, gaps_s: list[float]) -> _Block:
        before, began = cpu.taken(), time.monotonic()
        answers, _ = await sender.steady(bodies, gaps_s)
        seconds, spent = time.monotonic() - began, cpu.between(before, cpu.taken())
        own = {kind: taken - seconds * self._idle.get(kind, 0.0) for kind, taken in spent.items()}
        return _Block(answers, own)


def _p99(ranked: list[float]) -> float:
    return ranked[math.ceil(0.99 * len(ranked)) - 1]


def _side(blocks: list[_Block]) -> Side:
    count = sum(len(block.answers) for block in blocks)
    kinds = dict.fromkeys(kind for block in blocks for kind in block.cpu_s)
    return Side(
        ttft_ms=statistics.fmean(block.mean_ms("ttft_s") for block in blocks),
        total_ms=statistics.fmean(block.mean_ms("total_s") for block in blocks),
        cpu_ms={
            kind: 1000 * sum(block.cpu_s.get(kind, 0.0) for block in blocks) / count
            for kind in kinds
        },
    )


def _added(mine: list[_Block], its: list[_Block], name: str) -> tuple[float, float]:
    """Mean difference over pairs of blocks, and half of its 95% interval."""
    from scipy.stats import t

    extra = [a.mean_ms(name) - b.mean_ms(name) for a, b in zip(mine, its, strict=True)]
    if len(extra) < 2:
        return extra[0], math.inf
    error = statistics.stdev(extra) / math.sqrt(len(extra))
    return statistics.fmean(extra), float(t.ppf(0.975, len(extra) - 1)) * error
