import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cp_ray.demo.__main__ import main

OWN = Path(__file__).resolve().parent.parent.parent


@pytest.mark.ray
def test_the_demo_on_own_text_answers_everything_and_leaves_nothing(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    text = "\n\n".join(f"Paragraph {i} is about topic{i % 4}. " + "filler " * 40 for i in range(12))
    (docs / "long.md").write_text("# Long\n\n" + text)
    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps(["What of topic1?", ["And topic2?", "Why?"], "topic1, then?"]))
    report = tmp_path / "report.json"
    command = [
        sys.executable, "-m", "cp_ray.demo", "--engine", "simulated", "--arms", "full",
        "--documents", str(docs), "--questions", str(questions), "--json", str(report),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False,
        env={"PYTHONPATH": str(OWN), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(report.read_text())["rows"]
    assert [(row["workload"], row["arm"], row["requests"]) for row in rows] == [
        ("RAG", "full", 4),
        ("Chain-of-Agents", "full", 3 * 6),
    ]
    assert all(row["failed"] == 0 and row["prompt_tokens"] > 0 for row in rows)
    assert 0 < rows[1]["prefilled_tokens"] < rows[1]["prompt_tokens"]
    assert "simulated engine: times are modelled" in done.stdout
    assert [p.info for p in psutil.process_iter(["cwd", "cmdline"]) if in_folder(p, tmp_path)] == []


def in_folder(process: psutil.Process, folder: Path) -> bool:
    """Everything the demo starts inherits its working directory: so none of it can hide."""
    return bool(process.info["cwd"] == str(folder))


def test_documents_without_questions_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--documents", str(tmp_path)]) == 2
    assert "go together" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--arms", "plain,best"], ["--users", "0"], ["--replicas", "x"]])
def test_a_wrong_option_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err
