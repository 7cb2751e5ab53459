"""Rows of `bench reuse` as a table, as JSON, as a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay.reuse import ReuseRow

_HEADINGS = (
    f"{'policy':<18} {'hit ratio':>9} {'1st half':>8} {'2nd half':>8} {'ceiling':>8} "
    f"{'prefilled':>9} {'rounds':>6} {'plan p50':>10} {'plan p99':>10}   "
    "trace, requests, k, cache tokens, in flight"
)


def table(rows: Sequence[ReuseRow]) -> str:
    """One line a row under one of headings; plan times in microseconds a request."""
    return "\n".join((_HEADINGS, *(_line(row) for row in rows)))


def as_json(rows: Sequence[ReuseRow]) -> str:
    """A JSON array of objects with the rows' fields."""
    return msgspec.json.encode(list(rows)).decode()


def plot(rows: Sequence[ReuseRow], file: Path) -> None:
    """The rows as a picture; the file's ending gives its format.

    With a series: hit ratio and cached tokens over time (paper figures 12 and 13). Else over what
    differs between rows (k, conversations, in flight, cache), or as bars where nothing does.
    """
    if any(row.series for row in rows):
        draw(file, lambda figure: _over_time(rows, figure), (9, 3.6))
        return
    varying = [
        name
        for name in ("k", "conversations", "in_flight", "cache_tokens")
        if len({getattr(row, name) for row in rows}) > 1
    ]
    if varying:
        draw(file, lambda figure: _over(rows, varying[0], figure), (6, 4))
    else:
        draw(file, lambda figure: _bars(rows, figure), (6, 4))


def draw(file: Path, paint: Callable[[Any], None], size: tuple[float, float]) -> None:
    """Let `paint` fill a figure and save it.

    Raises ConfigError without matplotlib, or when the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "--plot needs matplotlib; install it with: pip install 'cp-ray[bench]'", param="plot"
        ) from error
    figure = Figure(figsize=size, layout="constrained")
    paint(figure)
    try:
        figure.savefig(file, dpi=90)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot: {file} cannot be written: {error}", param="plot") from error


def _bars(rows: Sequence[ReuseRow], figure: Any) -> None:
    axes = figure.subplots()
    axes.bar([row.policy for row in rows], [row.hit_ratio for row in rows])
    axes.tick_params(axis="x", labelrotation=30 if len(rows) > 4 else 0)
    if rows[0].ceiling is not None:
        axes.axhline(rows[0].ceiling, linestyle="--", color="grey", label="seen before (ceiling)")
        axes.legend()
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of tokens from the cache")
    axes.set_title(_title(rows[0]))


def _over(rows: Sequence[ReuseRow], name: str, figure: Any) -> None:
    hits, computed = figure.subplots(1, 2)
    places = {str(getattr(row, name)): None for row in rows}
    for policy in dict.fromkeys(row.policy for row in rows):
        own = {str(getattr(row, name)): row for row in rows if row.policy == policy}
        at = [place for place in places if place in own]
        hits.plot(at, [own[place].hit_ratio for place in at], marker="o", label=policy)
        computed.plot(at, [own[place].prefill_tokens for place in at], marker="o", label=policy)
    hits.set_ylabel("share of tokens from the cache")
    hits.set_ylim(0, 1)
    computed.set_ylabel("tokens computed per request")
    computed.set_ylim(bottom=0)
    for axes in (hits, computed):
        axes.set_xlabel(name.replace("_", " "))
    hits.legend(fontsize="small")
    figure.suptitle(_title(rows[0]))


def _over_time(rows: Sequence[ReuseRow], figure: Any) -> None:
    ratio, total = figure.subplots(1, 2)
    for row in rows:
        at = [point.requests for point in row.series]
        ratio.plot(at, [point.hit_ratio for point in row.series], label=row.policy)
        total.plot(at, [point.cached_tokens / 1e6 for point in row.series], label=row.policy)
    ratio.set_ylabel("share of tokens from the cache")
    ratio.set_ylim(0, 1)
    total.set_ylabel("million tokens from the cache, so far")
    for axes in (ratio, total):
        axes.set_xlabel("requests")
    ratio.legend(fontsize="small")
    figure.suptitle(_title(rows[0]))


def _title(row: ReuseRow) -> str:
    return f"{row.trace}, {cache_name(row.cache_tokens)} tokens, {row.in_flight} in flight"


def _line(row: ReuseRow) -> str:
    ceiling = "       -" if row.ceiling is None else f"{row.ceiling:>8.4f}"
    k = "all" if row.k is None else str(row.k)
    return (
        f"{row.policy:<18} {row.hit_ratio:>9.4f} {row.first_half:>8.4f} {row.second_half:>8.4f} "
        f"{ceiling} {row.prefill_tokens:>9.0f} {row.rounds:>6.2f} "
        f"{row.plan_us_p50:>7.0f} us {row.plan_us_p99:>7.0f} us   "
        f"{row.trace}, {row.requests}, {k}, {cache_name(row.cache_tokens)}, {row.in_flight}"
    )


def cache_name(tokens: int | None) -> str:
    """How a capacity is written."""
    return "inf" if tokens is None else str(tokens)
