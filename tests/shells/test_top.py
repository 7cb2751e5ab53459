"""`cp-ray top`, `explain` and `replay` on a running router."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cp_ray.cli import main
from tests.shells.test_fleet_page import Page, opened


@pytest.fixture
def page() -> Iterator[Page]:
    yield from opened()


def test_top_shows_replicas_and_losses_once(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    page.ask()
    page.ask()
    assert main(["top", "--once", "--url", page.url]) == 0
    shown = capsys.readouterr().out
    assert "r0" in shown
    assert "trusted 1/1" in shown
    assert "tenant wall" in shown
    assert main(["top", "--json", "--url", page.url]) == 0
    assert len(json.loads(capsys.readouterr().out)["recent"]) == 2


def test_explain_prints_the_steps_of_one_answer(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_id = page.ask()
    assert main(["explain", answer_id, "--url", page.url]) == 0
    shown = capsys.readouterr().out
    assert "first token" in shown
    assert "never sent before" in shown
    assert main(["explain", "chatcmpl-0", "--url", page.url]) == 2
    assert "no such request" in capsys.readouterr().err


def test_what_does_not_answer_and_what_is_not_allowed_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["top", "--once", "--url", "http://127.0.0.1:9"]) == 2
    assert "set --url" in capsys.readouterr().err
    for page in opened(operator_key="key-operator"):
        assert main(["top", "--once", "--url", page.url]) == 2
        assert "CP_RAY_OPERATOR_KEY" in capsys.readouterr().err
        monkeypatch.setenv("CP_RAY_OPERATOR_KEY", "key-operator")
        assert main(["top", "--once", "--url", page.url]) == 0


def test_a_recording_is_replayed_against_other_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"text {number} " * 40 for number in range(4)]
    for page in opened(tmp_path, reuse="route"):
        page.ask(documents=texts)
        page.ask(documents=texts[::-1])
        page.ask(documents=[texts[1], texts[3], texts[0], texts[2]])
        (folder,) = tmp_path.iterdir()
        assert main(["replay", str(folder), "--policy", "none,online", "--json"]) == 0
    recorded, none, online = json.loads(capsys.readouterr().out)
    assert none["hit_ratio"] == 0.0
    assert recorded["hit_ratio"] < 0.01, "a first page may begin alike"
    assert online["configuration"] == "online"
    assert online["hit_ratio"] > 0.6
    assert online["saved_tokens"] > 100


def test_what_is_no_recording_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path)]) == 2
    assert "trace.jsonl" in capsys.readouterr().err
