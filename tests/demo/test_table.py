import io
import math

import pytest
from rich.console import Console

from cp_ray.agents.chat import Answer
from cp_ray.demo.measure import Record
from cp_ray.demo.table import Ratio, ratios, show, summarize


def record(prompt: int, cached: int, ttft: float) -> Record:
    return Record("r", Answer("text", ttft, ttft + 1, prompt, cached, 8))


def test_a_row_sums_tokens_and_takes_the_p90_of_answered_requests() -> None:
    records = [record(100, 10 * i, i / 10) for i in range(1, 11)]
    row = summarize("rag", "full", [*records, Record("bad", None, "no")], 3.0)
    assert (row.requests, row.failed) == (11, 1)
    assert (row.prompt_tokens, row.prefilled_tokens) == (1000, 1000 - 550)
    assert row.hit_ratio == pytest.approx(0.55)
    assert row.ttft_mean_s == pytest.approx(0.55)
    assert row.ttft_p90_s == pytest.approx(0.9)


def test_a_row_without_answers_has_no_times() -> None:
    row = summarize("rag", "full", [Record("bad", None, "no")], 0.0)
    assert (row.prompt_tokens, row.hit_ratio) == (0, 0.0)
    assert math.isnan(row.ttft_mean_s)


def test_ratios_are_plain_by_the_other_arm_within_a_workload() -> None:
    rows = [
        summarize("rag", "plain", [record(100, 0, 2.0)], 1),
        summarize("rag", "full", [record(90, 40, 0.5)], 1),
        summarize("chain", "full", [record(90, 40, 0.5)], 1),
    ]
    assert ratios(rows) == [Ratio("rag", "full", 2.0, 4.0)]


def test_the_table_shows_every_row_and_ratio() -> None:
    rows = [
        summarize("Chain-of-Agents", arm, [record(900_000, 900 * cached, 1.0)], 1)
        for arm, cached in (("plain", 0), ("route", 200), ("full", 500))
    ]
    out = io.StringIO()
    show(rows, Console(file=out, width=80), caption="simulated engine")
    text = out.getvalue()
    assert "…" not in text
    assert "50.0%" in text
    assert "simulated engine" in text
    assert "full prefills 2.00x fewer tokens" in text
