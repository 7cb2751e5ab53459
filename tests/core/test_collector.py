"""The index looks for cycles seldom."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cp_ray.index_actor.collector import PASS_AFTER, collect_seldom


@pytest.fixture
def as_before() -> Iterator[None]:
    usual = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*usual)


@pytest.mark.usefixtures("as_before")
def test_objects_that_come_and_go_cause_no_pass() -> None:
    collect_seldom()
    passes = sum(generation["collections"] for generation in gc.get_stats())
    for _ in range(100):
        kept = [[number] for number in range(PASS_AFTER // 10)]
        assert len(kept) == PASS_AFTER // 10
        del kept
    assert sum(generation["collections"] for generation in gc.get_stats()) == passes


@pytest.mark.usefixtures("as_before")
def test_cycles_are_found_in_the_end() -> None:
    collect_seldom()
    passes = gc.get_stats()[0]["collections"]
    for _ in range(2 * PASS_AFTER):
        cycle: list[object] = []
        cycle.append(cycle)
    assert gc.get_stats()[0]["collections"] > passes
