"""Rows of `bench reuse` as a table, as JSON, as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay.reuse import ReuseRow

_HEADINGS = (
    f"{'policy':<10} {'hit ratio':>9} {'ceiling':>8} {'plan p50':>10} {'plan p99':>10}   "
    "trace, requests, cache tokens, in flight"
)


def table(rows: Sequence[ReuseRow]) -> str:
    """One line a row under one of headings; plan times in microseconds a request."""
    return "\n".join((_HEADINGS, *(_line(row) for row in rows)))


def as_json(rows: Sequence[ReuseRow]) -> str:
    """A JSON array of objects with the rows' fields."""
    return msgspec.json.encode(list(rows)).decode()


def plot(rows: Sequence[ReuseRow], file: Path) -> None:
    """Bars of the hit ratios under the ceiling; the file's ending gives its format.

    Raises ConfigError without matplotlib, or when the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "--plot needs matplotlib; install it with: pip install 'cp-ray[bench]'", param="plot"
        ) from error
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.bar([row.policy for row in rows], [row.hit_ratio for row in rows])
    axes.axhline(rows[0].ceiling, linestyle="--", color="grey", label="seen before (ceiling)")
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of block tokens from the cache")
    axes.set_title(f"{rows[0].trace}, {_cache(rows[0])} tokens, {rows[0].in_flight} in flight")
    axes.legend()
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot: {file} cannot be written: {error}", param="plot") from error


def _line(row: ReuseRow) -> str:
    return (
        f"{row.policy:<10} {row.hit_ratio:>9.4f} {row.ceiling:>8.4f} "
        f"{row.plan_us_p50:>7.0f} us {row.plan_us_p99:>7.0f} us   "
        f"{row.trace}, {row.requests}, {_cache(row)}, {row.in_flight}"
    )


def _cache(row: ReuseRow) -> str:
    return "inf" if row.cache_tokens is None else str(row.cache_tokens)
