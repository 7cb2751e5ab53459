"""References and rankings in a turn that a tool's results come to."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from cp_ray.core import annotation
from cp_ray.core.prompt import content_of
from cp_ray.core.types import RequestId
from cp_ray.router.api import ChatRequest
from cp_ray.router.assembly import Assembler, Finished, Limits
from cp_ray.router.auth import Tenant
from cp_ray.router.conversation import Turn
from cp_ray.router.tokenizer import WordTokenizer
from tests.references import HEADING, assert_resolves

ASSEMBLER = Assembler(WordTokenizer(), "m", Limits(lift=True))


def text(number: int) -> str:
    return f"Document {number} says enough about thing {number} to be worth lifting out. " * 3


def called(number: int, results: Sequence[int]) -> list[dict[str, Any]]:
    """The assistant's call, and what the tool says."""
    call = {"id": str(number), "type": "function", "function": {"name": "s", "arguments": "{}"}}
    found = json.dumps({"results": [{"url": "u", "text": text(result)} for result in results]})
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": str(number), "content": found},
    ]


def sent(
    name: str,
    messages: list[dict[str, Any]],
    documents: Sequence[int],
    turns: tuple[Turn, ...],
    *,
    turned: bool = False,
) -> tuple[Finished, Turn]:
    """The prompt, and the turn to record. turned: planned in the opposite order."""
    given = [{"id": f"d{number}", "text": text(number)} for number in documents]
    request = ChatRequest.model_validate(
        {"model": "m", "messages": messages, "documents": given, "conversation": "c"}
    )
    prepared = ASSEMBLER.prepare(request, Tenant("a"), RequestId(name), turns=turns)
    context = prepared.plan.context
    order = tuple(reversed(context)) if turned and prepared.plan.movable else context
    finished = ASSEMBLER.finish(prepared, order)
    assert prepared.kept is not None
    return finished, finished.turn(RequestId(name), prepared.kept)


def test_a_ranking_stays_clear_when_a_tools_results_come_to_stand_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(annotation, "WORDS", ("oak", "river", "lamp", "salt", "stone", "mint"))
    rng, renamed = random.Random(0), 0
    for _ in range(60):
        first, second, third = rng.sample(range(1000), 3)
        messages: list[dict[str, Any]] = [{"role": "user", "content": "q?"}]
        before, turn = sent("1", messages, [first, second], (), turned=True)
        after, _ = sent("2", [*messages, *called(1, [third])], [first, second], (turn,))
        assert_resolves("".join(after.user))
        renamed += bool(before.annotation) and before.annotation not in after.user
    assert renamed > 5, "labels of so few words do get in each other's way"


def test_a_question_that_reads_like_a_ranking_is_left_alone() -> None:
    question = "Read by priority: [Docs oak > river] and answer the question.\n\n"
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    _, turn = sent("1", messages, [1, 2], (), turned=True)
    after, _ = sent("2", [*messages, *called(1, [3])], [1, 2], (turn,))
    assert after.user[-1] == question
    ranking = after.user[-2]
    labels = ["oak stone", "river salt"]
    assert annotation.order_renamed(ranking, labels, labels) == ranking, "of other blocks"
    assert annotation.order_renamed(question, labels, [*labels, "oak mint"]).startswith(
        "Read by priority: [Docs stone > river]"
    )


def colliding(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Numbers of three documents; the last one has the first one's label."""
    monkeypatch.setattr(annotation, "WORDS", ("oak", "river", "lamp"))
    labels = [annotation.label_of(content_of(None, text(number))) for number in range(200)]
    first = labels[0]
    second = next(n for n, label in enumerate(labels) if label != first)
    return 0, second, labels.index(first, 1)


def texts_of_a_label(prompt: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for block in re.split(r"(?m)^(?=\[Doc )", prompt):
        if (heading := HEADING.match(block)) is not None:
            found.setdefault(heading[1], set()).add(block)
    return found


def test_a_tools_text_with_the_label_of_a_block_sent_with_this_turn_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the client sends that block no more: it stands, and the name would be either's."""
    first, second, same = colliding(monkeypatch)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q?"}]
    _, turn = sent("1", messages, [first, second], ())
    after, again = sent("2", [*messages, *called(1, [same])], [], (turn,))
    assert text(same) not in "".join(after.user)
    assert all(len(texts) == 1 for texts in texts_of_a_label("".join(after.user)).values())
    # The same block that stands is named all the same.
    after, _ = sent("3", [*messages, *called(1, [first])], [], (again,))
    assert "".join(after.user).count(text(first)) == 1


def test_a_ranking_goes_when_a_new_block_has_the_label_of_one_that_it_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, same = colliding(monkeypatch)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q?"}]
    before, turn = sent("1", messages, [first, second], (), turned=True)
    assert before.annotation
    messages += called(1, [500])
    after, turn = sent("2", messages, [first, second, same], (turn,))
    assert after.user[:2] == before.user[:2], "what stood stands"
    assert text(same) in "".join(after.user)
    assert not any(piece.startswith("Read by") for piece in after.user)
    assert after.user[-1] == "q?"
    last, _ = sent("3", messages, [first, second, same], (turn,))
    assert last.user == after.user


def test_each_result_of_a_tool_adds_no_reference_to_what_the_turn_refers_to_anyway() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q1?"}]
    _, first = sent("1", messages, [1, 2], ())
    messages += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "q2?"}]
    finished, turn = sent("2", messages, [1, 3, 2], (first,))
    for number in range(4):
        messages += called(number, [100 + number])
        finished, turn = sent(f"t{number}", messages, [1, 3, 2], (first, turn))
        assert_resolves("\n".join((*first.pieces, *finished.user)))
    rankings = [piece for piece in finished.user if piece.startswith("Read by priority")]
    assert len(rankings) == 1
    assert len(finished.user) == 1 + 1 + 4 + 1, "the new one, its ranking, four results, question"
