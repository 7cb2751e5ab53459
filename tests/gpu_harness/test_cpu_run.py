"""The harness from end to end on vLLM's CPU build: what a GPU will run, on a tiny shape."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.cells import AGENDAS
from benchmarks.gpu.driver import RunOptions, run
from benchmarks.gpu.in_flight import Trial
from benchmarks.gpu.results import InFlightResult, Results, load
from benchmarks.gpu.tasks import tasks_of, trials_of
from cp_ray.core.prefill_curve import PrefillCurve, fit
from tests.gpu_harness.support import make_kit

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

pytest.importorskip("vllm", reason="needs vLLM")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu_harness")


@pytest.fixture(scope="module")
def kit(folder):
    return make_kit(folder)


@pytest.fixture(scope="module")
def said(folder, kit):
    """One real run, by the one command."""
    command = [sys.executable, "-m", "benchmarks.gpu", "run", "--kit", str(kit.folder)]
    command += ["--out", str(folder / "out"), "--shapes", "tiny", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--seconds", "540"],
        cwd=Path(__file__).parents[2],
        check=False,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(folder, said):
    assert said
    return load(folder / "out", "tiny")


def test_every_task_is_done(results, kit):
    curve = PrefillCurve(0, 1, 0, 0)
    wanted = {task.name for task in tasks_of(kit, "tiny", curve, 16_384, 32)}
    assert set(results.done) == wanted
    assert results.skipped == []


def test_the_engine_counts_what_bench_reuse_counts_within_two_points(results):
    assert len(results.cells) == len(AGENDAS["tiny"].ranked("tiny"))
    for cell in results.cells.values():
        assert abs(cell.engine_hit - cell.reuse_hit) < 0.02, cell.cell


def test_one_at_a_time_the_engine_counts_what_the_plan_says_to_the_token(results):
    alone = [cell for cell in results.cells.values() if cell.cell.concurrency == 1]
    assert {cell.cell.cache_tokens for cell in alone} == {6400, None}
    for cell in alone:
        assert [one.cached for one in cell.requests] == list(cell.predicted), cell.cell


def test_a_capped_cache_holds_what_its_cell_says(results):
    room = {cell.cell.cache: cell.capacity_tokens for cell in results.cells.values()}
    assert room == {"6k": 6400, "uncapped": 16_384}


def test_without_caching_nothing_is_found_in_any_order(results):
    [uncached] = [cell for cell in results.cells.values() if cell.cell.policy == "uncached"]
    assert uncached.engine_hit == 0
    assert uncached.tokens == sum(one.tokens for one in uncached.requests) > 0


def test_the_order_that_reuses_more_prefills_less(results):
    cells = {cell.cell.policy: cell for cell in results.cells.values() if cell.cell.cache == "6k"}
    assert cells["offline"].engine_hit > cells["online"].engine_hit > cells["none"].engine_hit


def test_the_curve_has_cold_and_cached_prefills_and_is_fitted(folder, results):
    assert any(sample.cached == 0 for sample in results.samples)
    assert any(sample.cached > sample.new > 0 for sample in results.samples)
    assert max(sample.cached + sample.new for sample in results.samples) == 2048
    assert (folder / "out" / "curve-cpu-tiny.json").is_file()
    curve = fit(results.samples).curve
    assert curve.seconds(1900, 100) < curve.seconds(0, 2000)


def trial(
    results: Results, siblings: int, families: int, order: str, held: int | None = None
) -> InFlightResult:
    [made] = [
        one
        for one in trials_of("tiny")
        if (one.siblings, one.families, one.order, one.prefixes_held)
        == (siblings, families, order, held)
    ]
    return results.in_flight[f"{siblings}x{families}/{made.prefix_tokens}/{room(made)}/{order}"]


def room(made: Trial) -> str | int:
    return "all" if made.cache_tokens is None else made.cache_tokens


@pytest.mark.parametrize("siblings", [8, 64])
@pytest.mark.parametrize("order", ["together", "leader first", "a step later"])
def test_siblings_share_a_cold_prefix_in_any_order(results, siblings, order):
    assert set(trial(results, siblings, 1, order).cached_share) == {1.0}


def test_families_share_when_there_is_room_for_all(results):
    assert set(trial(results, 8, 8, "together").cached_share) == {1.0}
    assert set(trial(results, 8, 8, "in turn").cached_share) == {1.0}


def test_the_table_has_every_cell_and_its_ceiling(said, results):
    table = [line for line in said.splitlines() if line.startswith("| tiny ")]
    assert len(table) == len(results.cells)
    offline = next(line for line in table if "| offline" in line)
    assert offline.count("[") == 4  # four figures with their intervals
    assert "asynchronous scheduling" in said


def test_a_second_run_measures_nothing_again(folder, kit, results):
    heard: list[str] = []
    options = RunOptions(kit.folder, folder / "out", ("tiny",), "cpu", 60)
    assert run(options, heard.append) == 0
    assert any("all of it is measured" in line for line in heard)
    assert load(folder / "out", "tiny") == results
