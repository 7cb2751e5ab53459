"""A fleet that grows mid-trace: pre-warming helps, waits for clients, and is paid for."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import BlockId, RequestId
from cp_ray.errors import ConfigError
from cp_ray.replay.fleet.bench import FleetOptions
from cp_ray.replay.fleet.cell import PAGE, Hardware, new_replica
from cp_ray.replay.fleet.growth import LEAST, GrowthRow, bench_growth, hit_ratio, time_to
from cp_ray.replay.fleet.growth_report import table
from cp_ray.replay.fleet.job import Job, Live
from cp_ray.replay.fleet.policies.warming import Growing
from cp_ray.replay.fleet.simulation import Simulation
from cp_ray.replay.fleet.view import FleetView
from cp_ray.replay.trace import TraceRequest

CAPACITY = 1 << 16


def popular(count: int = 400) -> list[Job]:
    """Questions on 40 topics of four documents, some topics more popular than others."""
    draw = random.Random(7)
    jobs = []
    for number in range(count):
        topic = min(int(draw.expovariate(0.1)), 39)
        context = tuple(BlockId(f"{topic}-{block}") for block in range(4))
        request = TraceRequest(RequestId(f"q{number}"), "", context, (400,) * 4, 64)
        jobs.append(Job(request, 8))
    return jobs


def grown(*, warm: bool) -> Simulation:
    """From 2 to 4 replicas, 20 requests a second, after 5 s."""
    caches = [PrefixCache(CAPACITY, PAGE) for _ in range(4)]
    router = Growing(4, PAGE, CAPACITY, first=2, warm=warm)
    replicas = [new_replica("serial", cache) for cache in caches]
    simulation = Simulation(replicas, router, FleetView(caches, CAPACITY))
    simulation.at(5.0, router.join)
    simulation.spare = router.spare
    simulation.open_loop(popular(), [number / 20 for number in range(400)])
    router.index.check()
    return simulation


def joining(simulation: Simulation) -> list[Live]:
    return [live for live in simulation.done if live.replica >= 2]


def test_nothing_goes_to_replicas_that_have_yet_to_join() -> None:
    simulation = grown(warm=False)
    assert len(simulation.done) == 400
    assert simulation.warmed == []
    assert min(live.arrived_s for live in joining(simulation)) >= 5.0


def test_replicas_that_were_warmed_find_more_at_once() -> None:
    cold, warm = grown(warm=False), grown(warm=True)
    assert len(warm.done) == 400
    assert {live.replica for live in warm.warmed} == {2, 3}
    soon = [hit_ratio([one for one in joining(run) if one.arrived_s < 7]) for run in (cold, warm)]
    assert soon[1] > soon[0] + 0.2


def test_warming_begins_only_where_no_client_waits() -> None:
    simulation = grown(warm=True)
    assert simulation.warmed
    for warm in simulation.warmed:
        waiting = [
            live.request_id
            for live in simulation.done
            if live.replica == warm.replica and live.arrived_s < warm.arrived_s < live.first_s
        ]
        assert waiting == []


def test_warming_takes_the_engine_as_long_as_any_prompt() -> None:
    for warm in grown(warm=True).warmed:
        missed = warm.prompt_tokens - warm.cached
        assert warm.first_s - warm.arrived_s >= missed / 12_000 - 1e-9


def after(seconds: float, cached: int) -> Live:
    context = (BlockId("b"),)
    live = Live(Job(TraceRequest(RequestId("q"), "", context, (90,), 10), 1), 0.0, None)
    live.first_s, live.cached = 100.0 + seconds, cached
    return live


def test_the_time_to_a_hit_ratio_is_that_of_the_last_window() -> None:
    cold = [after(0.1 * n, 0) for n in range(LEAST)]
    good = [after(30.0 + n, 80) for n in range(LEAST)]
    assert time_to([*cold, *good], [], 100.0, 0.8) == pytest.approx(30.0 + LEAST - 1)
    assert time_to([*cold, *good], [], 100.0, 0.81) is None
    assert time_to(good[1:], [], 100.0, 0.8) is None, "too few to say"
    assert time_to(good, [after(31.0, 0)], 100.0, 0.8) is None, "its prefill is charged"


def test_growth_is_a_row_a_start_and_a_table(tmp_path: Path) -> None:
    lines = [
        {"question": f"q{n}?", "documents": [f"{topic} {block} " * 150 for block in range(3)]}
        for n in range(80)
        for topic in [n * n % 7]
    ]
    file = tmp_path / "trace.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    options = FleetOptions(file, Hardware(4, CAPACITY, "batching"), saturation_rps=20.0)
    rows: list[GrowthRow] = list(bench_growth(options, 2))
    assert [row.start for row in rows] == ["large", "cold", "warm"]
    assert [bool(row.warmed) for row in rows] == [False, False, True]
    assert "grows, pre-warmed" in table(rows)
    with pytest.raises(ConfigError, match="--grow-from"):
        next(bench_growth(options, 4))
