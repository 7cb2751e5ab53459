"""`make bench-fleet`: what it plays, that it goes on where it was, and how it judges."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from benchmarks.data import folder
from benchmarks.fleet import Results, run
from benchmarks.fleet_grid import (
    APART,
    CONTROL,
    LOADS,
    OVERLOADS,
    PARTS,
    SEEDS,
    GridCell,
    Part,
    at,
    cells,
    row_key,
)
from benchmarks.fleet_summary import ablations, summary
from benchmarks.fleet_verdicts import verdicts
from cp_ray.replay.fleet.bench import FleetRow
from cp_ray.replay.fleet.registry import OURS, RIVALS

ROW = FleetRow(
    trace="multihoprag",
    requests=100,
    replicas=16,
    cache_tokens=300_000,
    model="serial",
    arrivals="poisson",
    saturation_rps=20.0,
    load=0.8,
    seed=1,
    policy="cp_ray",
    order="ours",
    hit_ratio=0.5,
    block_hits=0.5,
    ttft_mean_s=1.0,
    ttft_p50_s=1.0,
    ttft_p99_s=2.0,
    throughput_tok_s=100.0,
    chains_per_s=1.0,
    imbalance=1.0,
    plan_us=1.0,
)


def rows(*changes: dict[str, object]) -> list[FleetRow]:
    return [msgspec.structs.replace(ROW, **change) for change in changes]


def test_every_policy_meets_every_part_load_and_seed_once() -> None:
    grid = list(cells())
    assert len({cell.key for cell in grid}) == len(grid)
    for part in PARTS:
        arms = {(cell.policy, cell.order) for cell in grid if cell.part == part}
        assert arms >= {(policy, "none") for policy in RIVALS} | {(ours, "ours") for ours in OURS}
        ordered = 0 if part.trace.startswith("mooncake") else 4
        assert sum(order == "paper" for _, order in arms) == ordered
        assert sum(policy.startswith("cp_ray-") for policy, _ in arms) == 4
    assert {c.load for c in grid if c.part == CONTROL} == {0.5, 0.8}
    assert {cell.seed for cell in cells("mtrag 16x100k", 5, True)} == {1, 2, 3, 4, 5}
    for part in (*PARTS, *APART):
        ours = [c for c in grid if (c.part, c.policy) == (part, "cp_ray")]
        ours = [c for c in ours if c.load not in OVERLOADS]
        assert {(c.load, c.seed) for c in ours} == {
            (load, s) for pair in LOADS for load in pair for s in SEEDS
        }


@pytest.mark.skipif(not (folder() / "multihoprag").exists(), reason="the traces are not here")
def test_it_goes_on_where_it_was_and_processes_change_no_figure(tmp_path: Path) -> None:
    part = Part("multihoprag", 40, 4, 100_000)
    asked = [at(part, 0.8, 1, policy) for policy in ("cp_ray", "round_robin", "lmetric")]

    def play(
        to: Path, wanted: Iterable[GridCell], most: int | None, jobs: int
    ) -> set[tuple[object, ...]]:
        results = Results(to)
        results.keep(part.name, 4.0)
        run(results, wanted, most, jobs)
        return {
            (row_key(row), row.hit_ratio, row.ttft_mean_s, row.ttft_p99_s) for row in results.rows()
        }

    assert len(play(tmp_path / "stopped", asked, 1, 1)) == 1
    gone_on = play(tmp_path / "stopped", asked, None, 2)
    assert gone_on == play(tmp_path / "at once", asked, None, 1)
    assert {row[0] for row in gone_on} == {cell.key for cell in asked}
    assert run(Results(tmp_path / "stopped"), asked, None, 1) == 0
    Results(tmp_path / "stopped").forget("cp_ray")
    assert run(Results(tmp_path / "stopped"), asked, None, 1) == 1


def test_a_rival_ahead_by_more_than_a_tie_is_told_with_its_share() -> None:
    tie = rows({}, {"policy": "lmetric", "order": "none", "ttft_mean_s": 0.99})
    assert "- **mean TTFT lowest (within 2%)**: met (1 of 1" in verdicts(tie)
    lost = rows({}, {"policy": "lmetric", "order": "paper", "ttft_mean_s": 0.8})
    said = verdicts(lost)
    assert "- **mean TTFT lowest (within 2%)**: missed (0 of 1" in said
    assert "1.000 s, lmetric + paper's order 0.800 s: missed by 22.5%" in said
    assert "at least 1.3x under the best with the paper's order**: missed" in said
    assert "at least 2x under the best without reordering**: not played" in said


def test_seeds_are_averaged_and_parts_judged_apart() -> None:
    rival = {"policy": "est_ttft", "order": "none"}
    two = rows(
        {},
        {"seed": 2, "ttft_mean_s": 3.0},
        {**rival, "ttft_mean_s": 4.1},
        {**rival, "seed": 2, "ttft_mean_s": 4.3},
        {"model": "batching"},
        {**rival, "model": "batching", "ttft_mean_s": 1.9},
    )
    said = verdicts(two)
    assert "2x under the best without reordering**: missed (1 of 2 cells)" in said
    assert "1.90x under est_ttft (1.900 s): missed by 5.3%" in said
    assert "2.000 ± " in summary(two)


def test_loads_and_ablations_are_compared() -> None:
    many = rows(
        {"load": 0.5},
        {"load": 1.2, "ttft_mean_s": 1.3},
        {"load": 1.2, "policy": "cp_ray-order", "ttft_mean_s": 2.6},
        {"trace": "multihoprag_no_overlap"},
        {
            "trace": "multihoprag_no_overlap",
            "policy": "least_loaded",
            "order": "none",
            "ttft_mean_s": 0.97,
        },
    )
    said = verdicts(many)
    assert "1.2x of its mean at 0.5**: missed (0 of 1" in said
    assert "1.30x: missed by 8.3%" in said
    assert "without overlap: within 2% of least_loaded**: missed" in said
    assert "| order |  |  | 2.00x |" in ablations(many)


def test_a_rival_is_held_against_the_seeds_that_it_has() -> None:
    rival = {"policy": "est_ttft", "order": "none"}
    three = rows(
        {"seed": 1, "ttft_mean_s": 1.0},
        {"seed": 2, "ttft_mean_s": 3.0},
        {**rival, "seed": 1, "ttft_mean_s": 1.5},
    )
    said = verdicts(three)
    assert "mean TTFT lowest (within 2%)**: met (1 of 1 cells)" in said
    assert "1.000 s, est_ttft 1.500 s: met" in said


def test_the_control_must_show_no_gain() -> None:
    warm: dict[str, object] = {"trace": "multihoprag_x2_warm"}
    rival = {**warm, "policy": "est_ttft", "order": "none"}
    said = verdicts(rows(warm, {**rival, "ttft_mean_s": 1.2}))
    assert "no gain over 5%**: missed (0 of 1 cells)" in said
    assert "1.20x under est_ttft (1.000 and 1.200 s): missed by 14.3%" in said
    assert "mean TTFT lowest (within 2%)**: not played" in said, "there is nothing to win"
    assert "no gain over 5%**: met" in verdicts(rows(warm, {**rival, "ttft_mean_s": 0.9}))


def test_what_is_served_at_saturation_is_held_against_round_robin() -> None:
    robin = {"policy": "round_robin", "order": "none", "throughput_tok_s": 16_000.0}
    over = [
        {"load": load, "seed": seed, **arm}
        for load in OVERLOADS
        for seed in SEEDS
        for arm in ({"throughput_tok_s": 29_000.0 + 1000 * seed - load}, robin)
    ]
    alone: dict[str, object] = {"load": OVERLOADS[0], "seed": 9, "throughput_tok_s": 9e4}
    said = verdicts(rows(*over, alone))
    assert "1.94x (31 and 16 thousand tokens/s): missed by 3.2%" in said
    assert "mean TTFT lowest (within 2%)**: not played" in said, "two policies are no field"
    assert "| 2.5 |" not in summary(rows(*over)) and "at 2.5" not in ablations(rows(*over))
    played = {(c.part.trace, c.load, c.policy) for c in cells() if c.load in OVERLOADS}
    assert played == {
        ("multihoprag", load, policy) for load in OVERLOADS for policy in ("cp_ray", "round_robin")
    }
