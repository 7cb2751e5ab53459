import json
from pathlib import Path
from typing import Any

import pytest

from cp_ray.agents.command import run_chain
from cp_ray.errors import ConfigError
from tests.shells.stub_openai import chunks_of, stub

TEXT = "# Title\n\n" + "\n\n".join(f"Paragraph {i} on topic{i}. " + "more " * 40 for i in range(7))


def test_all_questions_are_answered_and_counted(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "text.md").write_text(TEXT)
    with stub(lambda body: chunks_of(f"from {body['agent']}", cached=4)) as (url, seen):
        status = run_chain(
            tmp_path / "text.md", ["a?", "b?"], 3, url.removesuffix("/v1"), "m", as_json=True
        )
    assert status == 0
    report = json.loads(capfdbinary.readouterr().out)
    assert [a["answer"] for a in report["answers"]] == ["from manager", "from manager"]
    assert len(seen) == 2 * (3 + 1)
    read = [d["id"] for b in seen if "a?" in b["messages"][1]["content"] and "documents" in b
            for d in b["documents"]]  # fmt: skip
    assert sorted(read) == [f"text.md/{i}" for i in range(7)]


def test_a_failed_question_is_shown_and_gives_status_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.md").write_text(TEXT)

    def reply(body: dict[str, Any]) -> Any:
        bad = body["agent"] == "worker-2" and "b?" in body["messages"][1]["content"]
        return 422 if bad else chunks_of("x")

    with stub(reply) as (url, _):
        status = run_chain(
            tmp_path / "text.md", ["a?", "b?"], 2, url.removesuffix("/v1"), "m", as_json=False
        )
    shown = capsys.readouterr().out
    assert status == 1
    assert "FAILED worker-2 failed on 'b?'" in shown
    assert "3 calls, 0 of 30 tokens cached" in shown


def test_what_cannot_be_read_or_split_is_refused(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("only a few words")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    for file, workers, complaint in [
        (short, 2, "too few"),
        (short, 0, "at least 1"),
        (tmp_path / "none", 1, "cannot read"),
        (binary, 1, "UTF-8"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            run_chain(file, ["a?"], workers, "http://127.0.0.1:9", "m", as_json=False)
