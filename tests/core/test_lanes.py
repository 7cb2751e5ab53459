"""Depth-first sequences for many requests in flight."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cp_ray.core.scheduling import in_lanes


@given(items=st.lists(st.integers()), lanes=st.integers(1, 40))
def test_every_request_is_sent_once(items: list[int], lanes: int) -> None:
    assert sorted(in_lanes(items, lanes)) == sorted(items)


def test_one_lane_is_the_sequence_itself() -> None:
    assert in_lanes([3, 1, 2], 1) == [3, 1, 2]


def test_neighbours_of_the_sequence_never_run_together() -> None:
    sent = in_lanes(range(96), 8)
    for first in range(0, len(sent), 8):
        wave = sorted(sent[first : first + 8])
        assert all(later - earlier > 1 for earlier, later in pairwise(wave))


def test_each_lane_keeps_its_order() -> None:
    assert in_lanes("abcdef", 2) == ["a", "d", "b", "e", "c", "f"]
