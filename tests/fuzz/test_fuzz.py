"""A taste of `make fuzz`, the corpus of what once failed, and hypothesis on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import fuzz
from tests.fuzz.targets import TARGETS, Target, index_messages, wire_decoder

FEW = {"wire": 5000, "index": 500, "http": 300, "settings": 400, "serve_file": 60, "traces": 40}
KEPT = [(target, path) for target in TARGETS for path in target.corpus()]


@pytest.mark.parametrize(("target", "path"), KEPT, ids=[f"{t.name}-{p.name}" for t, p in KEPT])
def test_what_once_failed_does_not_fail_again(target: Target, path: Path) -> None:
    target.run(path.read_bytes())


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_random_inputs_find_no_fault(target: Target) -> None:
    assert fuzz(target, FEW[target.name], seed=12345) == 0


@given(st.binary(max_size=60).map(lambda data: b"\x01" + data))
@settings(max_examples=300, deadline=None)
def test_any_bytes_of_our_version_are_read_or_refused(data: bytes) -> None:
    wire_decoder(data)
    index_messages(data)


def test_the_fuzzer_notices_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.targets.CORPUS", tmp_path)

    def broken(data: bytes) -> None:
        assert len(data) < 20

    target = Target("broken", broken, TARGETS[0].make, 1)
    assert fuzz(target, 50, seed=0) > 0
    assert target.corpus(), "and keeps the input"
