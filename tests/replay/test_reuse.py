"""`bench reuse`: known figures on the real traces, in-flight sharing, refusals, reports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cp_ray.core.types import BlockId, RequestId
from cp_ray.errors import ConfigError
from cp_ray.replay.ablation import PARTS
from cp_ray.replay.command import parse_cache_tokens
from cp_ray.replay.policies import POLICIES
from cp_ray.replay.registry import ALL, make_policy
from cp_ray.replay.report import plot, table
from cp_ray.replay.reuse import ReuseOptions, bench_reuse
from cp_ray.replay.trace import TraceRequest, read_trace

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("CP_RAY_DATA", ROOT.parent / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / "multihoprag").exists(), reason="no traces: set CP_RAY_DATA to their folder"
)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    contexts = [[0, 1, 2], [2, 1, 0], [3, 4, 5], [0, 1, 2], [5, 4, 3]]
    lines = [{"request_id": n, "context": c, "question_tokens": 2} for n, c in enumerate(contexts)]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    blocks = "".join(f"{block}\t10\n" for block in range(6))
    (tmp_path / "blocks.tsv").write_text("block_id\ttokens\n" + blocks)
    return tmp_path


def hits(path: Path, **options: object) -> dict[str, float]:
    made = msgspec.structs.replace(ReuseOptions(path, policies=tuple(POLICIES)), **options)
    return {row.policy: row.hit_ratio for row in bench_reuse(made)}


@needs_data
def test_the_first_500_of_multihoprag_give_the_known_figures():
    rows = {
        row.policy: row
        for row in bench_reuse(
            ReuseOptions(DATA / "multihoprag", policies=tuple(POLICIES), requests=500)
        )
    }
    assert rows["none"].hit_ratio == pytest.approx(0.14, abs=0.005)
    assert rows["frequency"].hit_ratio == pytest.approx(0.38, abs=0.005)
    assert rows["none"].ceiling == pytest.approx(0.91, abs=0.005)
    assert rows["paper"].hit_ratio > rows["frequency"].hit_ratio
    assert rows["online"].hit_ratio > rows["paper"].hit_ratio


@needs_data
def test_the_first_1000_of_qasper_give_the_known_figures():
    found = hits(DATA / "qasper", policies=("none", "frequency"), requests=1000)
    assert found["none"] == pytest.approx(0.10, abs=0.005)
    assert found["frequency"] == pytest.approx(0.15, abs=0.005)


def test_order_reuses_what_the_original_order_does_not(toy: Path):
    found = hits(toy)
    assert found["none"] == pytest.approx(30 / 150)
    assert found["frequency"] == found["paper"] == found["online"] == pytest.approx(90 / 150)


def test_siblings_in_flight_miss_together_unless_a_leader_goes_first(toy: Path):
    step = hits(toy, policies=("online",), in_flight=5)
    finished = hits(toy, policies=("online",), in_flight=5, in_flight_sharing="finished")
    assert step["online"] == pytest.approx(90 / 150)
    assert finished["online"] == pytest.approx(90 / 150)  # leaders went first
    held = hits(toy, policies=("online-leaders",), in_flight=5, in_flight_sharing="finished")
    assert held["online-leaders"] == 0


def test_a_cache_too_small_for_the_window_still_serves_it(toy: Path):
    tight = hits(toy, in_flight=5, cache_tokens=40)
    assert tight["frequency"] == pytest.approx(90 / 150)
    assert tight["online"] == pytest.approx(90 / 150)
    assert tight["none"] == 0


def test_a_policy_hears_of_evictions_and_counts_on_nothing_that_is_gone(toy: Path):
    # One at a time, the cache holds one request: only a direct repeat can hit.
    assert hits(toy, policies=("online",), cache_tokens=32) == {"online": pytest.approx(30 / 150)}


def test_every_policy_only_moves_blocks_and_requests(toy: Path):
    trace = read_trace(toy)
    arms = [f"{name}-{part}" for name in ALL for part in PARTS]
    for name in (*ALL, *arms):
        policy = make_policy(name, None)
        arranged = policy.arrange(trace.requests)
        sent = policy.plan(arranged)
        assert sorted(s.request.request_id for s in sent) == ["0", "1", "2", "3", "4"]
        by_id = {request.request_id: request for request in trace.requests}
        for one in sent:
            original = by_id[one.request.request_id]
            assert sorted(one.context) == sorted(original.context)
            assert sorted(one.request.block_tokens) == sorted(original.block_tokens)


def test_frequency_keeps_each_length_with_its_block():
    requests = [
        TraceRequest(RequestId("0"), "", (BlockId("a"), BlockId("b")), (1, 2), 0),
        TraceRequest(RequestId("1"), "", (BlockId("c"), BlockId("b")), (3, 2), 0),
    ]
    for request in make_policy("frequency", None).arrange(requests):
        assert request.context[0] == "b"
        lengths = dict(zip(request.context, request.block_tokens, strict=True))
        assert lengths.items() <= {"a": 1, "b": 2, "c": 3}.items()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": ("none", "magic")}, "'magic' is not one of none, frequency"),
        ({"cache_tokens": 31}, "--cache-tokens: request 0 alone has 32 tokens"),
        ({"in_flight": 0}, "--in-flight: 0"),
        ({"k": 0}, "--k: 0"),
    ],
)
def test_an_option_that_cannot_work_is_named(toy: Path, options: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        hits(toy, **options)


def test_cache_tokens_are_a_number_or_inf():
    flag = "cache-tokens"
    assert (parse_cache_tokens(flag, "inf"), parse_cache_tokens(flag, "12")) == (None, 12)
    with pytest.raises(ConfigError, match="neither a number"):
        parse_cache_tokens(flag, "lots")


def test_table_and_plot_show_every_row(toy: Path, tmp_path: Path):
    rows = bench_reuse(ReuseOptions(toy))
    assert [line.split()[0] for line in table(rows).splitlines()[1:]] == [r.policy for r in rows]
    pytest.importorskip("matplotlib")
    plot(rows, tmp_path / "reuse.svg")
    assert "</svg>" in (tmp_path / "reuse.svg").read_text()
    with pytest.raises(ConfigError, match="cannot be written"):
        plot(rows, tmp_path / "absent" / "reuse.svg")


def test_a_plot_without_matplotlib_names_the_extra(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"cp-ray\[bench\]"):
        plot(bench_reuse(ReuseOptions(toy)), tmp_path / "reuse.svg")


def test_the_command_prints_rows_as_json(toy: Path):
    command = ["-m", "cp_ray.cli", "bench", "reuse", "--trace", str(toy), "--json"]
    done = subprocess.run(
        [sys.executable, *command, "--cache-tokens", "64", "--policy", "none,paper"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    rows = json.loads(done.stdout)
    assert [row["policy"] for row in rows] == ["none", "paper"]
    assert set(rows[0]) == {
        *("policy", "trace", "requests", "k", "cache_tokens", "in_flight", "in_flight_sharing"),
        *("conversations", "hit_ratio", "first_half", "second_half", "ceiling"),
        *("prefill_tokens", "rounds", "plan_us_p50", "plan_us_p99", "series"),
    }
