"""The one table: every cell beside its ceiling, with its confidence."""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Iterable, Sequence

from benchmarks.gpu.cells import AS_RETRIEVED
from benchmarks.gpu.confidence import Interval, Rate, rate
from benchmarks.gpu.results import CellResult, InFlightResult, Results

COLUMNS = (
    "shape",
    "KV cache",
    "C",
    "policy",
    "requests",
    "hit: engine",
    "plan",
    "bench reuse",
    "off, points",
    "prompt tok/s [95%]",
    "x as retrieved [95%]",
    "ceiling",
    "of it",
    "TTFT, s [95%]",
    "x as retrieved [95%]",
)
"""hit: shares of block tokens. plan: predicted in the engine's pages. off: the engine's count less
`bench reuse`. x: better than `none` in the same place. ceiling: tokens to compute, `none`'s by
those of the policy, as planned: what throughput can gain if a token costs what a token costs."""


def throughput(result: CellResult) -> Rate:
    """Prompt tokens a second, from one moment with first tokens to the next."""
    tokens: dict[float, int] = {}
    for one in sorted(result.requests, key=lambda one: one.first_s):
        tokens[one.first_s] = tokens.get(one.first_s, 0) + one.tokens
    moments = list(tokens)
    passed = [end - begin for begin, end in zip([0.0, *moments], moments, strict=False)]
    return rate(list(tokens.values()), passed, _seed(result, "throughput"))


def ttft(result: CellResult) -> Rate:
    """Mean seconds from submission to first token."""
    times = [one.ttft_s for one in result.requests]
    return rate(times, [1.0] * len(times), _seed(result, "ttft"))


def ceiling(result: CellResult, retrieved: CellResult) -> float:
    """The most that throughput can gain over `retrieved`, by tokens to compute per prompt token."""

    def computed(one: CellResult) -> float:
        return 1 - sum(one.predicted) / one.tokens

    return computed(retrieved) / computed(result)


def row(result: CellResult, retrieved: CellResult | None) -> list[str]:
    """One line of the table. retrieved: the cell `none` of the same place, if it was run."""
    cell = result.cell
    speed, first = throughput(result), ttft(result)
    shown = [
        cell.shape,
        cell.cache,
        str(cell.concurrency),
        cell.policy.removesuffix(".jsonl.gz"),
        str(len(result.requests)),
        f"{result.engine_hit:.3f}",
        f"{result.predicted_hit:.3f}",
        f"{result.reuse_hit:.3f}",
        f"{100 * (result.engine_hit - result.reuse_hit):+.1f}",
        _shown(speed.interval(), ",.0f"),
    ]
    if retrieved is None:
        return [*shown, "", "", "", _shown(first.interval(), ".3f"), ""]
    gain = speed.over(throughput(retrieved))
    most = ceiling(result, retrieved)
    return [
        *shown,
        _shown(gain, ".2f"),
        f"{most:.2f}",
        f"{gain.value / most:.0%}",
        _shown(first.interval(), ".3f"),
        _shown(ttft(retrieved).over(first), ".2f"),
    ]


def cell_rows(results: Results) -> list[list[str]]:
    """Every measured cell of a shape."""
    return [row(one, retrieved(results, one)) for one in results.cells.values()]


def retrieved(results: Results, result: CellResult) -> CellResult | None:
    """The cell to compare with."""
    return results.cells.get(result.cell.beside(AS_RETRIEVED).key)


IN_FLIGHT_COLUMNS = (
    "families",
    "siblings each",
    "prefix",
    "tail",
    "cache",
    "order",
    "shared",
    "makespan, s [least, most]",
    "mean first token, s",
)


def in_flight_row(one: InFlightResult) -> list[str]:
    """One order of dispatch. Median of the repeats, with the extremes."""
    room = "all" if one.cache_tokens is None else f"{one.cache_tokens:,}"
    spans = Interval(statistics.median(one.makespan_s), min(one.makespan_s), max(one.makespan_s))
    return [
        str(one.families),
        str(one.siblings),
        f"{one.prefix_tokens:,}",
        str(one.tail_tokens),
        room,
        one.order,
        f"{statistics.fmean(one.cached_share):.1%}",
        _shown(spans, ".3f"),
        f"{statistics.median(one.ttft_mean_s):.3f}",
    ]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As a Markdown table, in even columns so that it reads in a terminal, too."""
    lines = [list(columns), *(list(one) for one in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    text = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def _shown(interval: Interval, form: str) -> str:
    return f"{interval.value:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def _seed(result: CellResult, what: str) -> int:
    return zlib.crc32(f"{result.cell.shape}/{result.cell.key}/{what}".encode())
