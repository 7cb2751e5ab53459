"""The parts of `cp-ray bench serve --engine simulated` that need no Ray."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
import msgspec
import pytest

from cp_ray.core.types import ReplicaId
from cp_ray.demo import cpu, serve_bench
from cp_ray.demo.open_streams import OpenStreams
from cp_ray.demo.serve_bench import BenchOfTwo, Cell, ServeBench, ServeOptions, Side
from cp_ray.demo.serve_report import lines
from cp_ray.demo.streams import Bodies, Sender, Texts
from cp_ray.demo.text_work import text_ms
from cp_ray.workers.replica import make_engine
from tests.shells.http_support import Bench, running

T = TypeVar("T")


@pytest.mark.parametrize("kilobytes", [2, 60])
@pytest.mark.parametrize("texts", ["new", "known"])
def test_bodies_have_their_size_and_new_texts_were_never_sent(kilobytes: int, texts: Texts) -> None:
    bodies = Bodies(kilobytes, texts, seed=3)
    sent = [bodies.next() for _ in range(200)]
    mean = sum(map(len, sent)) / len(sent)
    assert 0.95 < mean / (1024 * kilobytes) < 1.1
    documents = [text for body in sent for text in json.loads(body)["documents"]]
    assert (len(set(documents)) == len(documents)) == (texts == "new")
    again = Bodies(kilobytes, texts, seed=3)
    assert [again.next() for _ in range(200)] == sent


class Engine:
    """The simulated engine of a router that runs in this process."""

    def evicted(self, evictions: object) -> None: ...

    def new_epoch(self) -> None: ...


async def ask(bench: Bench, work: Callable[[Sender], Awaitable[T]]) -> T:
    async with aiohttp.ClientSession() as http:
        return await work(Sender(http, bench.url))


def bench(**settings: Any) -> Bench:
    made = Bench(prefill_tokens_per_s=1e6, decode_tokens_per_s=1000, **settings)
    engine = make_engine(made.config)
    asyncio.run(engine.start(Engine()))
    made.dispatcher.engines = {ReplicaId("r0"): engine}
    return made


def test_a_sender_times_whole_answers_and_counts_what_is_none() -> None:
    with running(bench()) as it:

        async def both(sender: Sender) -> tuple[Any, Any, list[str]]:
            good = await sender.send(Bodies(2, "new", 0, max_tokens=30).next())
            bad = await sender.send(b'{"model": "sim"}')
            return good, bad, sender.failed

        began = time.perf_counter()
        answer, refused, failed = asyncio.run(ask(it, both))
        seconds = time.perf_counter() - began
    assert 0 < answer.ttft_s < answer.total_s < seconds
    assert answer.total_s - answer.ttft_s > 0.02, "29 tokens of a millisecond came later"
    assert 0 < answer.explained["timing_ms"]["issued"] < 1000 * answer.ttft_s
    assert refused is None
    assert [text.startswith("ValueError('400") for text in failed] == [True]


def test_an_open_loop_sends_at_its_moments_whatever_comes_of_those_before() -> None:
    with running(bench()) as it:

        async def steady(sender: Sender) -> tuple[int, float]:
            answers, seconds = await sender.steady(Bodies(2, "known", 0, 100), [0.02] * 20)
            return len(answers), seconds

        count, seconds = asyncio.run(ask(it, steady))
    assert count == 20
    assert 0.4 <= seconds < 2.0, "each answer takes 0.1 s: they overlap"


def test_a_closed_loop_counts_every_client_s_answers() -> None:
    with running(bench()) as it:

        async def closed(sender: Sender) -> float:
            return await sender.closed(Bodies(2, "known", 0, 100), 8, 1.0)

        rate = asyncio.run(ask(it, closed))
    assert 15 < rate < 85, "eight clients, and 0.1 s for each answer at least"


def test_cpu_is_counted_by_kind_of_process() -> None:
    title = "ray::ServeReplica:cp:Engine.generate"
    work = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.3: pass"
    code = f"{work}\nprint(1, flush=True); time.sleep(30)"
    process = subprocess.Popen(
        [title, "-c", code], executable=sys.executable, stdout=subprocess.PIPE
    )
    try:
        before = cpu.taken()
        assert process.stdout is not None
        process.stdout.readline()
        spent = cpu.between(before, cpu.taken())
        assert 0.25 < spent["cp Engine"] < 0.6
        assert process.pid in cpu.pids()["cp Engine"]
    finally:
        process.kill()
        process.wait()


def test_a_text_that_is_known_costs_less_than_a_new_one() -> None:
    new, known = (text_ms(Bodies(60, texts, 1))[0] for texts in ("new", "known"))
    assert 0 < known < new


def cell(**values: Any) -> Cell:
    fine = Cell(
        kilobytes=2,
        texts="known",
        saturation_per_s=40,
        rate_per_s=20,
        requests=100,
        failed=0,
        inside_median_ms=2.0,
        inside_p99_ms=9.0,
        stages_median_ms={"prepared": 0.5, "planned": 1.6, "issued": 2.0, "first_token": 9.0},
        cp_ray=Side(9.0, 90.0, {"cp Router": 12.0, "index": 2.0}),
        bare=Side(8.0, 88.0, {"bare Router": 12.0}),
        added_ttft_ms=(1.0, 0.5),
        added_total_ms=(2.0, 1.5),
        text_cpu_ms=(0.5, 0.3),
        echo_ms=(0.2, 1.0),
    )
    return msgspec.structs.replace(fine, **values)


def test_every_limit_that_is_missed_is_named() -> None:
    assert ServeBench({}, (cell(), cell(kilobytes=60)), None).faults == []
    slow = cell(inside_median_ms=3.1, inside_p99_ms=10.1, failed=1)
    dear = cell(cp_ray=Side(9.0, 90.0, {"cp Router": 16.0}))
    cut = OpenStreams(4000, 3999, 3999, 1, ("ValueError",), 1.0, 2.0, 3.0, ("proxy",))
    found = ServeBench({}, (slow, dear), cut)
    assert len(found.faults) == 3 + 1 + 3
    assert any("1.32 times" in fault for fault in found.faults)
    assert len(lines(found)) > 10


def test_a_cell_compares_two_applications_in_pairs_of_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one's tokens take 0.3 s longer to come."""
    for name in ("WARM_S", "SATURATE_S"):
        monkeypatch.setattr(serve_bench, name, 0.3)
    options = ServeOptions(sizes=(2,), pairs=3, block_s=0.5, load=0.15)

    async def measure(mine: str, its: str) -> Cell:
        async with aiohttp.ClientSession() as http:
            senders = Sender(http, mine), Sender(http, its)
            return await BenchOfTwo(*senders, {}, options).cell(2, "new")

    with running(bench()) as fast, running(delayed(bench(), 0.3)) as late:
        found = asyncio.run(measure(late.url, fast.url))
    assert found.failed == 0
    assert found.requests == 3 * round(found.rate_per_s * 0.5)
    mean, half = found.added_ttft_ms
    assert mean > 150
    assert half > 0
    assert found.inside_median_ms < found.cp_ray.ttft_ms
    assert found.text_cpu_ms[0] > 0
    assert 0 < found.echo_ms[0] <= found.echo_ms[1]


def delayed(it: Bench, seconds: float) -> Bench:
    """Its engine begins so much later."""
    (engine,) = it.dispatcher.engines.values()
    generate = engine.generate

    async def later(request: Any) -> Any:
        await asyncio.sleep(seconds)
        async for chunk in generate(request):
            yield chunk

    engine.generate = later
    return it
