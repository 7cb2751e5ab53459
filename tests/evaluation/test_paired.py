"""The interval of a ratio of means: it covers as often as it says, and pairs narrow it."""

from __future__ import annotations

import math
import random

from benchmarks.paired import ratio_interval


def drawn(seed: int, count: int = 30) -> tuple[list[float], list[float]]:
    """Pairs of a common size with noise of their own: means 3 and 2."""
    chosen = random.Random(seed)
    sizes = [chosen.uniform(0.5, 1.5) for _ in range(count)]
    return (
        [3 * size + chosen.gauss(0, 0.3) for size in sizes],
        [2 * size + chosen.gauss(0, 0.3) for size in sizes],
    )


def test_it_covers_the_true_ratio_as_often_as_it_says() -> None:
    intervals = [ratio_interval(*drawn(seed)) for seed in range(400)]
    covered = sum(low <= 1.5 <= high for low, _, high in intervals)
    # 380 of 400 are expected; fewer than 365 or more than 395 come once in a thousand times.
    assert 365 <= covered <= 395
    assert all(low < ratio < high for low, ratio, high in intervals)


def test_pairs_that_belong_together_narrow_it() -> None:
    upper, lower = drawn(1)
    low, _, high = ratio_interval(upper, lower)
    apart = ratio_interval(upper, lower[::-1])
    assert high - low < apart[2] - apart[0]


def test_where_the_lower_mean_may_be_zero_nothing_is_said() -> None:
    low, ratio, high = ratio_interval([1.0, 1.1, 0.9, 1.0], [5.0, -4.0, 5.0, -4.0])
    assert ratio > 0
    assert (low, high) == (-math.inf, math.inf)
