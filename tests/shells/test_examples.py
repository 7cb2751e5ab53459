"""Every example runs, as it stands, against a router with a small local engine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shells.http_support import Bench, running
from tests.shells.test_retrievers import fake

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = {
    "conversation": "repeated: ['documents.1']",
    "tool_results": "blocks: 2",
    "bm25": "documents: ['refunds']",
    "faiss_search": "documents: ['refunds']",
    "elasticsearch_search": "documents: ['1']",
    "memory": "cat named Tom",
}
NEEDS = {"faiss_search": "faiss", "memory": "mem0"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(Bench()) as bench:
        yield bench.url


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs_and_shows_what_it_says(name: str, url: str) -> None:
    needed = NEEDS.get(name)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"the extra with {needed} is not installed")
    with fake() as elasticsearch:
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / f"{name}.py", url, elasticsearch],
            capture_output=True,
            text=True,
            timeout=110,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout
    assert done.stdout.count("one two three") or name in ("conversation", "tool_results")


def test_every_example_is_tested_and_listed() -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert files == set(EXPECTED)
    listed = (ROOT / "examples" / "README.md").read_text()
    assert [name for name in files if f"{name}.py" not in listed] == []
