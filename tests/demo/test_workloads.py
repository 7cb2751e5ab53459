from itertools import chain as flat
from pathlib import Path

import pytest

from cp_ray.demo.corpus import Block
from cp_ray.demo.workloads import TOP_K, chain_over, dialogues, own_workloads, python_workloads
from cp_ray.errors import ConfigError

BLOCKS = [Block(f"s/{i}", "s", f"title{i}", f"words about subject{i}") for i in range(30)]


def test_the_workload_is_the_same_for_a_seed_and_another_for_another() -> None:
    once = python_workloads(0)
    assert once == python_workloads(0)
    other = python_workloads(1)
    assert once.dialogues != other.dialogues
    assert sorted(d.id for d in once.dialogues) == sorted(d.id for d in other.dialogues)


def test_every_question_retrieves_eight_documents() -> None:
    turns = list(flat.from_iterable(d.turns for d in python_workloads(0).dialogues))
    assert {len(turn.documents) for turn in turns} == {TOP_K}
    assert all(len({d["id"] for d in turn.documents}) == TOP_K for turn in turns)


def test_popular_documents_are_asked_for_in_different_orders() -> None:
    turns = list(flat.from_iterable(d.turns for d in python_workloads(0).dialogues))
    contexts = [tuple(d["id"] for d in turn.documents) for turn in turns]
    seen: set[str] = set()
    again = 0
    for context in contexts:
        again += len(seen & set(context))
        seen |= set(context)
    assert 0.5 <= again / (TOP_K * len(contexts)) <= 0.75
    assert len(set(contexts)) > 0.9 * len(contexts)


def test_a_follow_up_retrieves_with_the_turn_before_it() -> None:
    (dialogue,) = dialogues([("subject3?", "and?", "subject4?")], BLOCKS, 0)
    found = [{d["id"] for d in turn.documents} for turn in dialogue.turns]
    assert found == [{"s/3"}, {"s/3"}, {"s/4"}]


def test_the_workers_read_the_whole_document_once_in_order() -> None:
    chain = chain_over(BLOCKS, ["why?"])
    assert [d["id"] for part in chain.parts for d in part] == [b.id for b in BLOCKS]
    assert len(chain.parts) == 5
    short = chain_over(BLOCKS[:7], ["why?"])
    assert sorted(len(part) for part in short.parts) == [1, 1, 1, 2, 2]
    with pytest.raises(ConfigError, match="at least 5"):
        chain_over(BLOCKS[:4], ["why?"])


def test_each_question_ranks_a_part_for_itself() -> None:
    chain = chain_over(BLOCKS, ["subject5?"])
    rank = chain.ranker()
    assert next(iter(rank(0, "subject5?")))["id"] == "s/5"
    assert {d["id"] for d in rank(0, "subject5?")} == {d["id"] for d in chain.parts[0]}


def test_counts_and_the_short_version() -> None:
    whole = python_workloads(0)
    short = whole.shortened()
    assert whole.rag_requests == 61
    assert whole.chain_requests == 5 * (5 + 1)
    assert 0 < short.rag_requests < whole.rag_requests / 2
    assert short.chain_requests == 2 * (5 + 1)


def test_own_text_gives_both_workloads(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    long = "\n\n".join(f"Paragraph {i} about topic{i}. " + "filler text " * 25 for i in range(9))
    (tmp_path / "docs" / "long.md").write_text(long)
    (tmp_path / "docs" / "short.txt").write_text("about cats and dogs " * 5)
    questions = tmp_path / "q.txt"
    questions.write_text("What of topic3?\nWhat about cats?\n")
    workloads = own_workloads(tmp_path / "docs", questions, 0)
    assert workloads.chain.source == "long.md"
    assert workloads.chain.questions == ("What of topic3?", "What about cats?")
    assert workloads.rag_requests == 2
