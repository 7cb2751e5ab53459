"""The figure of `make bench-timing`: 0.5 for a coin, 1 for a clock that tells, and its error."""

from __future__ import annotations

import random

import pytest

from benchmarks.timing import roc


def test_values_that_are_all_above_are_told_apart_for_sure() -> None:
    assert roc([3.0, 4.0, 5.0], [1.0, 2.0]) == (1.0, 0.0)
    assert roc([1.0, 2.0], [3.0, 4.0, 5.0])[0] == 0.0


def test_ties_are_half_and_a_coin_is_a_half() -> None:
    assert roc([1.0, 1.0], [1.0, 1.0])[0] == 0.5
    assert roc([1.0, 3.0], [2.0])[0] == 0.5


def test_the_error_is_that_of_many_repetitions() -> None:
    rng = random.Random(0)

    def sample(shift: float) -> list[float]:
        return [rng.gauss(shift, 1.0) for _ in range(100)]

    found = [roc(sample(0.3), sample(0.0)) for _ in range(400)]
    aucs = [auc for auc, _ in found]
    mean = sum(aucs) / len(aucs)
    spread = (sum((auc - mean) ** 2 for auc in aucs) / (len(aucs) - 1)) ** 0.5
    assert sum(error for _, error in found) / len(found) == pytest.approx(spread, rel=0.1)
