"""Ratio of two means from pairs, with its interval (Fieller's method)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student


def ratio_interval(
    upper: Sequence[float], lower: Sequence[float], level: float = 0.95
) -> tuple[float, float, float]:
    """(low, mean(upper) / mean(lower), high), two-sided at `level`; the values come in pairs.

    The interval is all r for which the mean of upper - r * lower may be 0. Three pairs at least,
    both means above 0. Where the second may be 0, nothing is said: (-inf, ratio, inf).
    """
    count = len(upper)
    a, b = float(np.mean(upper)), float(np.mean(lower))
    # Squared, the border is a parabola in r: p r^2 - 2 q r + s = 0.
    part = float(student.ppf((1 + level) / 2, count - 1)) ** 2 / count
    cov = np.cov(upper, lower)
    p = b * b - part * float(cov[1, 1])
    q = a * b - part * float(cov[0, 1])
    s = a * a - part * float(cov[0, 0])
    if p <= 0:
        return -math.inf, a / b, math.inf
    half = math.sqrt(max(0.0, q * q - p * s))
    return (q - half) / p, a / b, (q + half) / p
