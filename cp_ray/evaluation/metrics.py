"""Scores of answers, and how sure they are.

Exact match and F1 as SQuAD counts them: lower case, no punctuation, no articles, F1 over words; of
several right answers the best counts. Intervals are 95% bootstrap percentiles over questions;
differences are of the same questions, pair by pair.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

_AT_ONCE, _TIMES = 100, 20
"""Resamples: so many at once bound the memory."""
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = re.compile(r"[^\w\s]")


class Estimate(msgspec.Struct, frozen=True):
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float


def normalized(text: str) -> list[str]:
    """Words that count."""
    return _ARTICLES.sub(" ", _PUNCTUATION.sub(" ", text.lower())).split()


def exact(answer: str, right: Sequence[str]) -> float:
    """1 when the answer is one of the right ones."""
    return float(any(normalized(answer) == normalized(one) for one in right))


def f1(answer: str, right: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words, by the best of the right answers."""
    return max((_f1(normalized(answer), normalized(one)) for one in right), default=0.0)


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    common = (Counter(given) & Counter(wanted)).total()
    return 2 * common / (len(given) + len(wanted))


def estimate(values: Sequence[float], seed: int = 0) -> Estimate:
    """Mean of one value for each question."""
    if not values:
        return Estimate(0.0, 0.0, 0.0)
    chosen = np.random.default_rng(seed)
    given = np.asarray(values)
    size = given.size
    means = [given[chosen.integers(size, size=(_AT_ONCE, size))].mean(1) for _ in range(_TIMES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(given.mean()), float(low), float(high))
