"""The arithmetic of docs/decisions/0003: up to which context length overlap dominates."""

from __future__ import annotations

import pytest

from cp_ray.core.distance import DEFAULT_ALPHA, distance
from cp_ray.core.types import BlockId, Context


def _blocks(count: int, prefix: str = "b") -> Context:
    return tuple(BlockId(f"{prefix}{number}") for number in range(count))


def _overlap_dominates(k: int, alpha: float) -> bool:
    whole = _blocks(k)
    one_less = (*whole[:-1], BlockId("other"))
    return distance(whole, whole[::-1], alpha) < distance(whole, one_less, alpha)


@pytest.mark.parametrize(("alpha", "last"), [(0.01, 14), (0.001, 44)])
def test_overlap_dominates_up_to_the_length_the_record_names(alpha: float, last: int) -> None:
    assert [k for k in range(2, 60) if _overlap_dominates(k, alpha)] == list(range(2, last + 1))


def test_the_default_suits_the_papers_k_of_15_and_the_upper_end_does_not() -> None:
    assert _overlap_dominates(15, DEFAULT_ALPHA)
    assert not _overlap_dominates(15, 0.01)


@pytest.mark.parametrize(("alpha", "first"), [(0.01, 11), (0.001, 33)])
def test_one_far_shared_block_is_farther_than_none_from_the_length_named(
    alpha: float, first: int
) -> None:
    shared = BlockId("s")

    def passes_one(k: int) -> bool:
        ahead = (shared, *_blocks(k - 1))
        behind = (*_blocks(k - 1, "c"), shared)
        return distance(ahead, behind, alpha) > 1

    assert [k for k in range(2, 60) if passes_one(k)] == list(range(first, 60))
