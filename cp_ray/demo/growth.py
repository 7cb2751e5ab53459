"""Growth of processes: what they use, by kind, and whether it rises."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import psutil

Sample = tuple[float, dict[str, tuple[float, int]]]
"""Seconds, and of each kind of process the resident MB and the open files of all of them."""


class Growth(msgspec.Struct, frozen=True):
    """One kind of process over the second half of the run.

    mb: at its end, all processes of the kind. mb_per_minute: slope, plus_minus its 95% interval.
    files: open at the end of the half less those at its beginning.
    """

    mb: float
    mb_per_minute: float
    plus_minus: float
    files: int


def sizes(app: str) -> dict[str, tuple[float, int]]:
    """Resident MB and open files of all processes of each kind under this one."""
    found: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    kinds = {
        "engine": f"ray::ServeReplica:{app}:Engine",
        "router": f"ray::ServeReplica:{app}:Router",
        "proxy": "ray::ProxyActor",
        "index": "ray::IndexActor",
        "redis": "valkey-server",
    }
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            for kind, name in kinds.items():
                if words and name in words[0]:
                    mb, files = found[kind]
                    mb += process.memory_info().rss / 1e6
                    found[kind] = mb, files + process.num_fds()
    return dict(found)


def growth(samples: Sequence[Sample]) -> dict[str, Growth]:
    """Slopes over the second half of the samples; of kinds with at least three of them."""
    half = samples[len(samples) // 2 :]
    grown = {}
    for kind in dict.fromkeys(kind for _, found in half for kind in found):
        points = [(at / 60, *found[kind]) for at, found in half if kind in found]
        if len(points) < 3:
            continue
        slope, error = _slope([(at, mb) for at, mb, _ in points])
        grown[kind] = Growth(points[-1][1], slope, 1.96 * error, points[-1][2] - points[0][2])
    return grown


def _slope(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: slope and its standard error."""
    x_mean = statistics.fmean(x for x, _ in points)
    y_mean = statistics.fmean(y for _, y in points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / spread
    rest = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in points)
    return slope, float((rest / (len(points) - 2) / spread) ** 0.5)
