import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.cells import Cell
from benchmarks.gpu.confidence import rate
from benchmarks.gpu.driver import report
from benchmarks.gpu.engine_run import Facts, Measured
from benchmarks.gpu.results import CellResult, InFlightResult, Results, load, results_file, save
from benchmarks.gpu.table import ceiling, row, throughput
from cp_ray.core.prefill_curve import Sample
from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError

FACTS = Facts("a device", {"vllm": "0"}, 0, 16, 10_000, 8192, True, 1.0)


def result(policy: str, cached: int, seconds_each: float, count: int = 40) -> CellResult:
    requests = tuple(
        Measured(RequestId(str(n)), 1000, cached, n * seconds_each, (n + 1) * seconds_each)
        for n in range(count)
    )
    return CellResult(
        Cell("tiny", policy, 1, None, count),
        "2026-01-01",
        FACTS,
        10_000,
        900 * count,
        (cached,) * count,
        cached / 900 + 0.01,
        1.0,
        1.0,
        requests,
    )


def test_a_row_says_how_much_faster_and_of_which_ceiling():
    retrieved, ours = result("none", 100, 0.9), result("offline", 550, 0.5)
    assert ceiling(ours, retrieved) == pytest.approx(2.0)
    shown = row(ours, retrieved)
    assert shown[5:9] == ["0.611", "0.611", "0.621", "-1.0"]
    assert shown[9].startswith("2,000 [")
    assert shown[10].startswith("1.80 [")
    assert shown[11:13] == ["2.00", "90%"]
    assert shown[13].startswith("0.500 [")
    assert shown[14].startswith("1.80 [")


def test_without_the_cell_to_compare_with_a_row_compares_nothing():
    assert row(result("offline", 550, 0.5), None)[10:13] == ["", "", ""]


def test_time_counts_between_first_tokens_in_the_order_they_come():
    measured = result("none", 0, 1.0, count=10)
    backwards = msgspec.structs.replace(measured, requests=measured.requests[::-1])
    assert throughput(backwards).value == throughput(measured).value == 1000


def test_requests_of_one_step_are_counted_together():
    measured = result("none", 0, 1.0, count=10)
    pairs = tuple(
        msgspec.structs.replace(one, first_s=2.0 * (int(one.request_id) // 2 + 1))
        for one in measured.requests
    )
    interval = throughput(msgspec.structs.replace(measured, requests=pairs)).interval()
    assert interval.low == interval.value == interval.high == 1000


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=50))
def test_an_interval_holds_its_estimate_and_shifts_with_it(amounts):
    one = rate(amounts, [1.0] * len(amounts), 1).interval()
    ten = rate([10 * amount for amount in amounts], [1.0] * len(amounts), 1).interval()
    assert one.low <= np.mean(amounts) + 1e-9
    assert one.high >= np.mean(amounts) - 1e-9
    assert ten.low == pytest.approx(10 * one.low)


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    source = np.random.default_rng(5)
    inside = 0
    for run in range(200):
        noise = source.normal(1, 0.3, size=200)
        alike = np.convolve(noise, np.ones(3) / 3, mode="valid")  # neighbours depend on each other
        interval = rate(alike.tolist(), [1.0] * len(alike), run).interval()
        inside += interval.low <= 1 <= interval.high
    assert 0.85 <= inside / 200 <= 0.99


def test_more_requests_make_an_interval_narrower():
    source = np.random.default_rng(6)
    few, many = source.normal(1, 0.3, 20).tolist(), source.normal(1, 0.3, 2000).tolist()
    narrow, wide = rate(many, [1.0] * 2000, 1).interval(), rate(few, [1.0] * 20, 1).interval()
    assert narrow.high - narrow.low < (wide.high - wide.low) / 4


def test_amounts_without_weights_make_no_rate():
    with pytest.raises(ValueError, match="2 amounts and 1 weights"):
        rate([1, 2], [1], 0)


def test_results_are_read_back_as_they_were_saved(tmp_path):
    saved = Results("tiny", done=["tiny/curve"], samples=[Sample(0, 10, 1.0), Sample(5, 7, 0.9)])
    for one in (result("none", 100, 0.9), result("offline", 550, 0.5)):
        saved.cells[one.cell.key] = one
    trial = InFlightResult("together", 8, 1, 640, 32, None, (1.0,), (0.2,), (0.1,), FACTS, "x")
    saved.in_flight[trial.key] = trial
    save(tmp_path, saved)
    assert load(tmp_path, "tiny") == saved
    text = report(tmp_path, ["tiny"])
    assert text.count("| tiny") == 2
    assert "together" in text
    assert "9 of 10 samples within" in text


def test_a_results_file_that_cannot_be_read_is_named(tmp_path):
    results_file(tmp_path, "tiny").write_text('{"shape": 1}')
    with pytest.raises(ConfigError, match=r"results-tiny\.json"):
        load(tmp_path, "tiny")
