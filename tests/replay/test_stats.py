"""How much a trace repeats: by hand, and the figures published with the traces."""

import json
from pathlib import Path

import pytest

from cp_ray.cli import main
from cp_ray.core.types import BlockId, RequestId
from cp_ray.replay.stats import trace_stats
from cp_ray.replay.trace import Trace, TraceRequest, read_trace
from tests.replay.test_reuse import DATA, needs_data


def request(name: int, conversation: str, *blocks: int) -> TraceRequest:
    context = tuple(BlockId(str(block)) for block in blocks)
    return TraceRequest(RequestId(str(name)), conversation, context, (10,) * len(blocks), 5)


def test_shares_and_overlaps_by_hand():
    trace = Trace(
        "t",
        (
            request(0, "a", 0, 1),
            request(1, "b", 0, 2),
            request(2, "a", 0, 3),
            request(3, "a", 4, 1),
        ),
    )
    stats = trace_stats(trace)
    assert stats.distinct_blocks == 5
    assert stats.top20_share_of_accesses == 3 / 8  # block 0 is the top fifth
    assert stats.top20_share_of_requests == 3 / 4
    assert stats.turn_overlap == (0 + 0 + 1 / 2 + 1 / 2) / 4
    assert stats.turn_overlap_later == 1 / 2
    assert stats.seen_before == 3 / 8
    assert stats.prefix_hit == 2 / 8
    assert stats.conversations == 2
    assert (stats.curve[0], stats.curve[10], stats.curve[-1]) == (0, 3 / 8, 1)


def test_a_trace_without_any_block_has_nothing_to_share():
    stats = trace_stats(Trace("t", (request(0, ""), request(1, ""))))
    assert stats.top20_share_of_accesses == stats.turn_overlap == stats.prefix_hit == 0


@needs_data
def test_figure_3_and_the_turn_overlap_of_mt_rag():
    multihoprag = trace_stats(read_trace(DATA / "multihoprag"))
    assert multihoprag.top20_share_of_accesses == pytest.approx(0.792, abs=0.001)  # paper: 79.2%
    mtrag = trace_stats(read_trace(DATA / "mtrag"))
    assert mtrag.turn_overlap_later == pytest.approx(0.396, abs=0.0005)
    assert mtrag.prefix_hit_frequency == pytest.approx(0.1337, abs=0.0005)


def test_the_command_prints_a_column_each_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"question": "why?", "documents": ["a" * 40, "b" * 80]}) + "\n")
    assert main(["trace", "stats", str(file), str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["trace", "mine", "mine"]
    assert main(["trace", "stats", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["distinct_blocks"] == 2
    pytest.importorskip("matplotlib")
    assert main(["trace", "stats", str(file), "--plot", str(tmp_path / "p.svg")]) == 0
    assert "</svg>" in (tmp_path / "p.svg").read_text()
