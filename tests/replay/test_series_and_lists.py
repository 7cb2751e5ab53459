"""Halves, series, several values of an option, and their plots."""

import json
from pathlib import Path

import pytest

from cp_ray.cli import main
from cp_ray.replay.reuse import POINTS, ReuseOptions, bench_reuse


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    contexts = [[n, n + 1, n + 2] for n in range(6)] + [[0, 1, 2]] * 6
    lines = [{"request_id": n, "context": c, "question_tokens": 1} for n, c in enumerate(contexts)]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    blocks = "".join(f"{block}\t10\n" for block in range(9))
    (tmp_path / "blocks.tsv").write_text("block_id\ttokens\n" + blocks)
    return tmp_path


def test_halves_are_of_the_requests_that_arrived_in_them(toy: Path):
    (row,) = bench_reuse(ReuseOptions(toy, policies=("none",)))
    assert (row.first_half, row.second_half, row.hit_ratio) == (0, 1, 0.5)


def test_a_series_adds_up_to_the_whole(toy: Path):
    (row,) = bench_reuse(ReuseOptions(toy, policies=("none",), series=True))
    assert len(row.series) == min(POINTS, row.requests)
    assert row.series[-1].requests == row.requests
    assert row.series[-1].cached_tokens == row.hit_ratio * 12 * 30
    assert [point.hit_ratio for point in row.series] == [0.0] * 6 + [1.0] * 6


def test_lists_make_every_combination_and_ablation_an_arm_each(
    toy: Path, capsys: pytest.CaptureFixture[str]
):
    command = ["bench", "reuse", "--trace", str(toy), "--json", "--policy", "online,none"]
    command += ["--k", "1,3", "--cache-tokens", "inf,90", "--ablate", "order"]
    assert main(command) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["k"], row["cache_tokens"], row["policy"]) for row in rows] == [
        (k, cache, policy)
        for k in (1, 3)
        for cache in (None, 90)
        for policy in ("online", "online-order", "none")
    ]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--k", "three"], "--k: 'three' is not a number"),
        (["--ablate", "luck"], "--ablate: 'luck' is not one of order, schedule"),
        (["--conversations", "0"], "--conversations: 0 is less than 1"),
        (["--policy", "plan:absent"], "no such file: absent"),
    ],
)
def test_an_option_that_cannot_work_is_one_line(
    toy: Path, capsys: pytest.CaptureFixture[str], option: list[str], message: str
):
    assert main(["bench", "reuse", "--trace", str(toy), *option]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--series"], ["--k", "1,2,3"], ["--conversations", "1,2"]])
def test_each_kind_of_row_has_a_picture(toy: Path, tmp_path: Path, option: list[str]):
    pytest.importorskip("matplotlib")
    file = tmp_path / "picture.svg"
    assert main(["bench", "reuse", "--trace", str(toy), "--plot", str(file), *option]) == 0
    assert "</svg>" in file.read_text()
