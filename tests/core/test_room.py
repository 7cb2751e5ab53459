"""How long a prompt waits for room in a cache that running requests fill."""

from __future__ import annotations

import pytest

from cp_ray.core.room import Room


def room() -> Room:
    known = Room()
    known.answered(10.0)
    return known


def test_while_there_is_room_nobody_waits() -> None:
    assert room().wait_s(pinned=60, need=40, capacity=100) == 0.0
    assert room().wait_s(pinned=0, need=100, capacity=100) == 0.0


def test_those_running_make_room_evenly_over_one_answer() -> None:
    assert room().wait_s(pinned=100, need=50, capacity=100) == pytest.approx(5.0)
    assert room().wait_s(pinned=80, need=60, capacity=100) == pytest.approx(5.0)


def test_what_waits_for_room_itself_frees_none() -> None:
    """Three caches full are spoken for: two of them must run and end before this prompt's turn."""
    assert room().wait_s(pinned=300, need=50, capacity=100) == pytest.approx(25.0)
