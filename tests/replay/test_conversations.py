"""Conversations side by side: history in front, turns in order, repeats left out by who plans."""

import json
from pathlib import Path

import pytest

from cp_ray.core.types import BlockId
from cp_ray.replay.conversations import (
    FULL_NAME_TOKENS,
    LIST_TOKENS,
    LOCATION_TOKENS,
    RANKING_TOKENS,
    SideBySide,
    pieces_of,
    reference_tokens,
)
from cp_ray.replay.policies import Sent
from cp_ray.replay.reuse import ReuseOptions, bench_reuse
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


def test_a_window_holds_one_turn_of_each_conversation_and_the_next_begins_when_one_ends(
    talks: Path,
):
    beside = SideBySide(read_trace(talks).requests, 2)
    windows = []
    while window := beside.next_window():
        windows.append([request.request_id for request in window])
        for request in window:
            beside.answered(Sent(request, request.context))
    assert windows == [["0", "1"], ["2", "3"], ["4"]]


def test_a_turn_stands_behind_all_earlier_turns_and_their_answers(talks: Path):
    beside = SideBySide(read_trace(talks).requests, 1)
    (first,) = beside.next_window()
    beside.answered(Sent(first, first.context))
    (second,) = beside.next_window()
    assert second.history is not None
    assert second.history.tokens == 2 * 100 + 5 + 7
    assert second.history.seen == {"0", "1"}
    pieces = pieces_of(Sent(second, (BlockId("4"),), repeated=(BlockId("0"),)))
    assert [length for _, length in pieces[-3:]] == [100, LOCATION_TOKENS + 1, 5]


def test_de_duplication_saves_what_the_conversation_holds(talks: Path):
    rows = {
        row.policy: row
        for row in bench_reuse(
            ReuseOptions(talks, policies=("none", "online"), conversations=2, in_flight=9)
        )
    }
    # none: each turn computes its blocks and question, a second turn the answer before it, too.
    assert rows["none"].prefill_tokens * 5 == 5 * 205 + 2 * 7
    # online: turn 2 of a computes one block and a reference, of b one for two; c reuses a.
    again = 100 + LOCATION_TOKENS + 1 + 12 + LOCATION_TOKENS + LIST_TOKENS + 2 + 12
    assert rows["online"].prefill_tokens * 5 == 2 * 205 + again + 5
    assert rows["online"].ceiling is None
    assert rows["online"].in_flight == 2


def test_a_run_of_repeats_is_one_annotation_and_several_runs_are_one_ranking_of_all():
    blocks = [BlockId(str(n)) for n in range(5)]
    a, b, c, d, _ = blocks
    one_run = reference_tokens((a, b, c), {a, b}, {a, b})
    assert one_run == [LOCATION_TOKENS + LIST_TOKENS + 2]
    assert reference_tokens((a, c, b, d), {a, b}, {a, b}) == [RANKING_TOKENS + LIST_TOKENS + 4]
    assert reference_tokens((c, d), set(), {a, b}) == []
    # Among so many blocks some words are of two labels.
    many = [BlockId(f"m{n}") for n in range(600)]
    (tokens,) = reference_tokens(tuple(many), set(many), many)
    full, rest = divmod(tokens - LOCATION_TOKENS - LIST_TOKENS - 600, FULL_NAME_TOKENS - 1)
    assert 60 < full < 240 and rest == 0
