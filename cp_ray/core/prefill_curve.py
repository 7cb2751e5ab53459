"""Seconds of one prefill as a function of its cached and its new tokens, fitted to measurements.

t(cached, new) = base + a new + b new^2 + c cached new: a is the layers' matrix work, b and c are
attention, of the new tokens among themselves and onto the cached ones. No coefficient is negative,
so t never falls when either argument grows. Used by the simulated engine and by benchmarks/gpu.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """One measured prefill. cached, new: prompt tokens. seconds: above 0."""

    cached: int
    new: int
    seconds: float


class PrefillCurve(msgspec.Struct, frozen=True):
    """The four coefficients, in seconds per the power of tokens that each one's name says.

    Raises ValueError for a negative one.
    """

    base_s: float
    per_new_s: float
    per_new_squared_s: float
    per_pair_s: float

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; a prefill curve never falls")

    def seconds(self, cached: int, new: int) -> float:
        """Time of one prefill of `new` tokens behind `cached` ones, alone on the engine."""
        if cached < 0 or new < 0:
            raise ValueError(f"tokens below 0: cached {cached}, new {new}")
        linear = self.per_new_s + self.per_new_squared_s * new + self.per_pair_s * cached
        return self.base_s + linear * new


class Fitted(msgspec.Struct, frozen=True):
    """A curve, and how far it is from its samples: |fitted - measured| / measured, 90th percentile.

    At most a tenth of the samples are further off than p90_relative_error.
    """

    curve: PrefillCurve
    p90_relative_error: float


def fit(samples: Sequence[Sample]) -> Fitted:
    """The non-negative coefficients with the least sum of squared relative errors.

    Relative, so that a prefill of 10 ms counts like one of 10 s. All 15 choices of coefficients
    that may differ from 0 are solved: exact, and cheap for four. Raises ValueError without samples
    or when one took no time.
    """
    import numpy as np

    if not samples:
        raise ValueError("a prefill curve needs at least one sample")
    if any(sample.seconds <= 0 or sample.cached < 0 or sample.new < 0 for sample in samples):
        raise ValueError("a sample has seconds above 0 and no negative tokens")
    cached = np.array([sample.cached for sample in samples], dtype=float)
    new = np.array([sample.new for sample in samples], dtype=float)
    measured = np.array([sample.seconds for sample in samples])
    terms = np.stack([np.ones_like(new), new, new**2, cached * new], axis=1) / measured[:, None]
    scale = np.maximum(np.abs(terms).max(axis=0), np.finfo(float).tiny)
    scaled = terms / scale
    best, least = np.zeros(4), float("inf")
    for count in range(1, 5):
        for chosen in combinations(range(4), count):
            columns = list(chosen)
            found = np.linalg.lstsq(scaled[:, columns], np.ones(len(samples)), rcond=None)[0]
            if (found < 0).any():
                continue
            error = float(((scaled[:, columns] @ found - 1.0) ** 2).sum())
            if error < least:
                least = error
                best = np.zeros(4)
                best[columns] = found
    curve = PrefillCurve(*(float(value) for value in best / scale))
    errors = sorted(
        abs(curve.seconds(sample.cached, sample.new) - sample.seconds) / sample.seconds
        for sample in samples
    )
    return Fitted(curve, errors[-(len(errors) // 10) - 1])
