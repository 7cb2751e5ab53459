"""Confidence of means and rates over requests that follow each other, by a moving-block bootstrap.

Neighbours in a run are alike (they share prefixes, and wait for each other), so whole stretches
are drawn, not single requests: Kunsch 1989.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

DRAWS = 2000
LEVEL = 0.95

Floats = npt.NDArray[np.float64]


class Interval(msgspec.Struct, frozen=True):
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float


class Rate(msgspec.Struct, frozen=True):
    """A ratio of sums, amount / weight, with its draws: what two runs' ratio is made from."""

    value: float
    draws: tuple[float, ...]

    def interval(self) -> Interval:
        """Of the rate itself."""
        return _interval(self.value, np.array(self.draws))

    def over(self, other: Rate) -> Interval:
        """Of this rate divided by another one's, the runs being independent."""
        return _interval(self.value / other.value, np.array(self.draws) / np.array(other.draws))


def rate(amounts: Sequence[float], weights: Sequence[float], seed: int) -> Rate:
    """sum(amounts) / sum(weights) over a run in order. weights of 1 give the mean.

    seed: other runs need another one, or their draws go together.
    """
    if not amounts or len(amounts) != len(weights):
        raise ValueError(f"{len(amounts)} amounts and {len(weights)} weights make no rate")
    above, below = np.array(amounts, dtype=float), np.array(weights, dtype=float)
    count = len(above)
    length = max(1, math.ceil(count ** (1 / 3)))
    random = np.random.default_rng(seed)
    starts = random.integers(0, count, size=(DRAWS, math.ceil(count / length)))
    places = (starts[:, :, None] + np.arange(length)) % count  # circular: every request as often
    places = places.reshape(DRAWS, -1)[:, :count]
    draws = above[places].sum(axis=1) / below[places].sum(axis=1)
    return Rate(float(above.sum() / below.sum()), tuple(draws.tolist()))


def _interval(value: float, draws: Floats) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(float(value), float(low), float(high))
