"""Seconds of a prompt's own prefill on each replica, by what is learnt at one moment.

For the planner's inner loops: numbers that lie in plain classes are read many times faster by
compiled code than those of a struct or behind a function.
"""

from __future__ import annotations

from typing import final

from cp_ray.core.prefill_curve import PrefillCurve


@final
class Alone:
    """A prefill curve, for a prompt that is alone on an engine of the usual speed."""

    __slots__ = ("base_s", "per_new_s", "per_new_squared_s", "per_pair_s")

    def __init__(self, curve: PrefillCurve) -> None:
        self.base_s: float = curve.base_s
        self.per_new_s: float = curve.per_new_s
        self.per_new_squared_s: float = curve.per_new_squared_s
        self.per_pair_s: float = curve.per_pair_s

    def seconds(self, cached: int, new: int) -> float:
        """As `PrefillCurve.seconds`, to the last digit; no token count is below 0."""
        linear = self.per_new_s + self.per_new_squared_s * new + self.per_pair_s * cached
        return self.base_s + linear * new


@final
class OwnTimes:
    """Of replicas by their number: a window's layout asks for hundreds, and nothing changes.

    answers_s[r]: what its answers add to a prompt; slowness[r]: seconds for one of the curve.
    """

    __slots__ = ("_alone", "_answers_s", "_slowness")

    def __init__(self, alone: Alone, answers_s: list[float], slowness: list[float]) -> None:
        self._alone = alone
        self._answers_s = answers_s
        self._slowness = slowness

    def seconds(self, r: int, cached: int, total: int) -> float:
        """Of a prompt of so many tokens on replica r, where so many of them are held."""
        new = total - cached
        alone_s = self._alone.seconds(cached, new if new > 1 else 1)
        return (alone_s + self._answers_s[r]) * self._slowness[r]
