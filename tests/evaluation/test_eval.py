"""`cp-ray eval` against a local endpoint that answers from the prompt it is sent."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cp_ray.cli import main
from cp_ray.evaluation.arms import ARMS, Question, prompts, read_questions
from tests.shells.stub_openai import chunks_of, stub

PASSAGE = " ".join(f"word{n}" for n in range(60))


def questions() -> list[Question]:
    texts = [f"fact {n}: the city of {n} is c{n}. {PASSAGE if n % 2 else ''}" for n in range(6)]
    orders = [(0, 1, 2), (2, 1, 0), (1, 0, 3), (5, 4)]
    first = [
        Question(f"Which city is {o[0]}?", [texts[n] for n in o], [f"c{o[0]}"]) for o in orders
    ]
    talk = [
        Question("Which city is 1?", [texts[1]], ["c1"], "talk"),
        Question("Which city is 3?", [texts[3], texts[1]], ["c3"], "talk"),
    ]
    return [*first, *talk]


def text_of(messages: list[dict[str, str]]) -> str:
    return "\n".join(message["content"] for message in messages)


def test_each_switch_changes_what_it_says_and_nothing_else() -> None:
    asked = {name: prompts(questions(), switches, "m") for name, switches in ARMS.items()}
    changed = {name: [n for n, one in enumerate(arm) if one.changed] for name, arm in asked.items()}
    assert changed["off"] == changed["repeat"] == []
    assert changed["order"] == changed["order+annotation"] != []
    assert changed["dedup"] == [5] and changed["dedup+partial"] == [5]
    assert set(changed["all"]) == set(changed["order"]) | {5}
    for place in changed["order"]:
        plain, order, both = (
            text_of(asked[name][place].messages) for name in ("off", "order", "order+annotation")
        )
        assert sorted(plain) == sorted(order), "a permutation of whole blocks"
        assert "Read by priority" not in order and "Read by priority" in both
    talk = text_of(asked["dedup"][5].messages)
    assert talk.count("the city of 1 is c1.") == 1 and "Please refer to [Doc" in talk
    assert talk.count(PASSAGE) == 2
    assert text_of(asked["dedup+partial"][5].messages).count(PASSAGE) == 1


def test_a_folder_of_blocks_and_requests_is_a_question_set(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "blocks.jsonl.gz", "wt") as file:
        file.write('{"block_id": 0, "text": "t0", "tokens": 1}\n{"block_id": 1, "text": "t1"}\n')
    with gzip.open(tmp_path / "requests.jsonl.gz", "wt") as file:
        line = {"question": "q", "context": [1, 0], "answers": ["a"], "session": "s", "turn": 0}
        file.write(json.dumps(line) + "\n")
    assert read_questions(tmp_path, None) == [Question("q", ["t1", "t0"], ["a"], "s")]


def reply(body: dict[str, Any]) -> list[dict[str, Any] | str] | int:
    """Right where no annotation is in the way; no answer to the last question of a talk."""
    text = text_of(body["messages"])
    number = re.findall(r"Which city is (\d)", text)[-1]
    if "Which city is 5" in text:
        return 400
    return chunks_of("wrong" if "Read by priority" in text else f"C{number}.")


def test_a_loss_shows_with_its_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "q.jsonl"
    lines = [
        {"question": q.question, "documents": q.documents, "answers": q.answers}
        for q in questions()[:4]
    ]
    source.write_text("\n".join(json.dumps(line) for line in lines))
    with stub(reply) as (url, seen):
        arguments = ["eval", str(source), "--url", url.removesuffix("/v1"), "--model", "m"]
        arguments += ["--arms", "repeat,order,order+annotation", "--json"]
        assert main(arguments) == 1, "one question had no answer"
    rows = {row["arm"]: row for row in json.loads(capsys.readouterr().out)}
    assert [*rows] == ["off", "repeat", "order", "order+annotation"]
    assert all("documents" not in body for body in seen), "any endpoint can be asked"
    for arm in ("off", "repeat", "order"):
        assert rows[arm]["answered"] == 3
        assert rows[arm]["exact"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
        assert rows[arm]["agreement"]["mean"] == 1.0
    lost = rows["order+annotation"]
    assert lost["changed"] >= 1
    assert lost["f1_gain"]["mean"] == pytest.approx(-lost["changed"] / 3)
    assert lost["f1_gain"]["low"] < lost["f1_gain"]["mean"] < 0


@pytest.mark.parametrize(
    ("text", "arms", "says"),
    [
        ("", "all", "holds no question"),
        ('{"question": "q"}', "all", "line 1"),
        ('{"question": "q", "documents": []}', "everything", "--arms"),
    ],
)
def test_faults_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, arms: str, says: str
) -> None:
    source = tmp_path / "q.jsonl"
    source.write_text(text)
    assert main(["eval", str(source), "--arms", arms, "--url", "http://127.0.0.1:1"]) == 2
    assert says in capsys.readouterr().err


def test_an_endpoint_that_is_not_there_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "q.jsonl"
    source.write_text('{"question": "q", "documents": []}')
    assert main(["eval", str(source), "--arms", "off", "--url", "http://127.0.0.1:1"]) == 2
    assert "is it running there?" in capsys.readouterr().err
