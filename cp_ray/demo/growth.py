"""Growth of processes: what they use, by kind, and whether it rises."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec
import psutil

Sample = tuple[float, dict[str, tuple[float, int]]]
"""Seconds, and of each kind of process the resident MB and the open files of all of them."""
SPAN_S = 60.0
"""Samples of a minute count as one, their mean: neighbours resemble each other, and a slope over
them all would look surer than it is."""
LEAST_BYTES = 64
"""Whatever is kept of a request takes more: its id alone takes 81 bytes."""
SURE_SHARE = 0.25
"""Where more than this share an hour cannot be excluded, nothing is said."""


CONTROL = "bare"
"""Kind of the control's processes (soak_control.py), and its application's name."""
CONTROLLED = ("engine",)
"""Kinds that are judged by what they grow by beyond the control."""


class Growth(msgspec.Struct, frozen=True):
    """One kind of process over the whole measurement.

    mb: at its end, all processes of the kind. mb_per_minute: slope of the minutes' means,
    plus_minus half of its 95% interval. files: open at the end less those at the beginning.
    requests_per_minute: meanwhile. than: the control whose growth is taken off; "" = none.
    """

    mb: float
    mb_per_minute: float
    plus_minus: float
    files: int
    requests_per_minute: float
    than: str = ""

    @property
    def least_bytes(self) -> float:
        """Lower end of the interval, in bytes for each request."""
        return 1e6 * (self.mb_per_minute - self.plus_minus) / self.requests_per_minute

    @property
    def verdict(self) -> Literal["flat", "grows", "not sure"]:
        """grows: by LEAST_BYTES a request for sure. not sure: it may, and SURE_SHARE an hour."""
        if self.least_bytes > LEAST_BYTES:
            return "grows"
        most = self.mb_per_minute + self.plus_minus
        small = 1e6 * most <= LEAST_BYTES * self.requests_per_minute
        return "flat" if small or 60 * most <= SURE_SHARE * self.mb else "not sure"


def sizes(app: str) -> dict[str, tuple[float, int]]:
    """Resident MB and open files of all processes of each kind under this one."""
    found: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    kinds = {
        "engine": f"ray::ServeReplica:{app}:Engine",
        "router": f"ray::ServeReplica:{app}:Router",
        "proxy": "ray::ProxyActor",
        "index": "ray::IndexActor",
        "redis": "valkey-server",
        CONTROL: f"ray::ServeReplica:{CONTROL}:Engine",
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


def growth(samples: Sequence[Sample], requests_per_minute: float) -> dict[str, Growth]:
    """Slopes over all samples; of kinds seen in at least three whole minutes.

    Where there is a control its size is taken off that of the kinds it is for, sample by sample.
    """
    grown = {}
    kinds = dict.fromkeys(kind for _, found in samples for kind in found)
    for kind in kinds:
        than = CONTROL if kind in CONTROLLED and CONTROL in kinds else ""
        points = [
            (at, found[kind][0] - (found[than][0] if than else 0.0), found[kind][1])
            for at, found in samples
            if kind in found and (not than or than in found)
        ]
        minutes: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for at, mb, _ in points:
            minutes[int((at - points[0][0]) // SPAN_S)].append((at / 60, mb))
        means = [
            (statistics.fmean(at for at, _ in minute), statistics.fmean(mb for _, mb in minute))
            for minute in minutes.values()
            if len(minute) > 1
        ]
        if len(means) < 3:
            continue
        slope, half = _slope(means)
        files = points[-1][2] - points[0][2]
        mb = next(found[kind][0] for _, found in reversed(samples) if kind in found)
        grown[kind] = Growth(mb, slope, half, files, requests_per_minute, than)
    return grown


def _slope(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: slope and half of its 95% interval."""
    from scipy.stats import t

    x_mean = statistics.fmean(x for x, _ in points)
    y_mean = statistics.fmean(y for _, y in points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / spread
    rest = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in points)
    free = len(points) - 2
    return slope, float(t.ppf(0.975, free) * (rest / free / spread) ** 0.5)
