"""Reuse across turns beside its ceilings, on a trace small enough to count by hand."""

import json
from pathlib import Path

import pytest

from cp_ray.cli import main
from cp_ray.replay.conversation_bench import ConversationOptions, bench_conversations, ceilings_of
from cp_ray.replay.conversations import LIST_TOKENS, LOCATION_TOKENS
from cp_ray.replay.trace import read_trace


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    turns = [("a", [0, 1]), ("b", [2, 3]), ("a", [0, 4]), ("b", [3, 2]), ("c", [1, 0])]
    lines = [
        {"request_id": n, "session": s, "context": c, "question_tokens": 5, "answer_tokens": 7}
        for n, (s, c) in enumerate(turns)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    blocks = "".join(f"{block}\t100\n" for block in range(5))
    (tmp_path / "blocks.tsv").write_text("block_id\ttokens\n" + blocks)
    return tmp_path


def test_ceilings_count_what_nobody_need_compute_again(talks: Path) -> None:
    requests = read_trace(talks).requests
    with_history = ceilings_of(requests, history=True)
    # Of ten blocks three were in the own conversation; c has its two from a's first turn.
    assert with_history.within == pytest.approx(0.3)
    assert with_history.anywhere == pytest.approx(0.5)
    assert with_history.reachable == pytest.approx(0.5)
    # Without histories a's second turn shares one block with the first, b's both, c both.
    assert ceilings_of(requests, history=False).reachable == pytest.approx(0.5)


def test_repeated_blocks_cost_a_reference_and_first_turns_share_by_order(talks: Path) -> None:
    none, online = bench_conversations(ConversationOptions(talks, side_by_side=2))
    assert none.reuse == pytest.approx(1.0)
    computed = 2 * 200 + (100 + LOCATION_TOKENS + 1) + LOCATION_TOKENS + LIST_TOKENS + 2
    assert online.reuse == pytest.approx(1000 / computed)
    assert online.saved == pytest.approx(1 - computed / 1000)
    assert online.of_within == pytest.approx(online.saved / 0.3)
    assert online.plain_tokens == none.plain_tokens == (5 * 205 + 2 * 212) / 5


def test_without_histories_only_order_helps(talks: Path) -> None:
    (online,) = bench_conversations(ConversationOptions(talks, ("online",), history=False))
    assert online.of_within is None
    assert 0.3 <= online.saved <= online.of_reachable <= 1


def test_the_command_prints_each_ceiling(talks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "conversations", "--trace", str(talks), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["none", "online"]
    assert rows[0]["within"] == pytest.approx(1 / 0.7)
    assert main(["bench", "conversations", "--trace", str(talks), "--side-by-side", "0"]) == 2
