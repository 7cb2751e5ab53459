"""When jobs come: `poisson`, `bursty` (Mooncake's time stamps, rescaled), `closed` (N clients)."""

from __future__ import annotations

import random
from collections.abc import Sequence


def poisson(count: int, rate: float, seed: int) -> list[float]:
    """`count` times in seconds, `rate` a second on average."""
    clock = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        now += clock.expovariate(rate)
        times.append(now)
    return times


def bursty(stamps: Sequence[float], count: int, rate: float, seed: int) -> list[float]:
    """A stretch of a trace's time stamps, stretched to `rate`: bursts stay bursts.

    stamps: seconds, not decreasing. seed: where the stretch begins; it wraps round at the end.
    """
    begin = random.Random(seed).randrange(len(stamps))
    span = stamps[-1] - stamps[0]
    times = []
    for number in range(count):
        turn, at = divmod(begin + number, len(stamps))
        times.append(turn * (span + span / len(stamps)) + stamps[at])
    mean_gap = (times[-1] - times[0]) / max(count - 1, 1)
    scale = 1.0 / (rate * mean_gap) if mean_gap else 1.0
    return [(time - times[0]) * scale for time in times]
