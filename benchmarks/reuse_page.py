"""The tables and plots of docs/reuse.md out of measured cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.reuse_figures import sections
from benchmarks.reuse_table import (
    CACHES,
    IN_FLIGHT,
    OFFLINE,
    ONLINE,
    SHOWN,
    TRACES,
    Cell,
    Place,
)

SHORT = {"plan": "authors' plan", "paper_offline": "paper offline", "radix_lpm": "radix lpm"}
COLOURS = (
    "#333333",
    "#999999",
    "#c49a6c",
    "#7a9e7e",
    "#4c72b0",
    "#c44e52",
    "#8172b2",
    "#64b5cd",
    "#dd8452",
)


def shown_policies(cells: Sequence[Cell]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of each class that were measured at all."""
    there = {cell.policy for cell in cells}
    return tuple(n for n in ONLINE if n in there), tuple(n for n in OFFLINE if n in there)


def tables(cells: Sequence[Cell]) -> str:
    return "\n".join((_every_cell(cells), _halves(cells), _cost(cells), _pictures(), sections()))


def _every_cell(cells: Sequence[Cell]) -> str:
    at = {cell.place: cell for cell in cells}
    online, offline = shown_policies(cells)
    lines = [
        "## Every cell",
        "",
        "Hit ratio in percent of block tokens. In flight: `s` where engines share a prefix within "
        "the step (vLLM), `f` where only finished prefixes are shared (SGLang). Bold: the best of "
        "its class in the row, and what is within 0.2 points of it, where the class is complete. "
        "An empty cell, or a trace that is missing, is not measured yet (or has no plan of the "
        "authors).",
        "",
        "| trace (seen before) | cache | in flight | "
        + " | ".join(SHORT.get(name, name) for name in (*online, *offline))
        + " |",
        "| --- | ---: | ---: | " + " | ".join("---:" for _ in (*online, *offline)) + " |",
    ]
    for trace in TRACES:
        for cache in CACHES:
            for in_flight, sharing in IN_FLIGHT:
                row = {
                    name: at.get((trace, name, cache, in_flight, sharing))
                    for name in (*online, *offline)
                }
                ceiling = next((cell.ceiling for cell in row.values() if cell), None)
                if ceiling is None:
                    continue
                marks = [f"{trace} ({ceiling:.1%})", SHOWN[cache]]
                marks.append("1" if in_flight == 1 else f"{in_flight} {sharing[0]}")
                lines.append(
                    "| " + " | ".join((*marks, *_bold(row, online), *_bold(row, offline))) + " |"
                )
    return "\n".join((*lines, ""))


def _bold(row: dict[str, Cell | None], names: Sequence[str]) -> list[str]:
    complete = all(row[name] for name in names if name != "plan")
    best = max((cell.hit for name in names if (cell := row[name])), default=0.0)
    if not complete:
        best = 1.0  # nothing is the best of a class until all of it is measured
    shown = []
    for name in names:
        cell = row[name]
        if cell is None:
            shown.append("")
        else:
            text = f"{cell.hit * 100:.1f}"
            shown.append(f"**{text}**" if cell.hit >= best - 0.002 else text)
    return shown


def _halves(cells: Sequence[Cell]) -> str:
    at = {cell.place: cell for cell in cells}
    online, offline = shown_policies(cells)
    lines = [
        "## First and second half",
        "",
        "Hit ratio in percent of the requests that arrived in the first / second half of the "
        "trace, one at a time, 400k tokens. Both belong to one replay: the second half meets the "
        "cache and the index that the first has filled.",
        "",
        "| trace | " + " | ".join(SHORT.get(n, n) for n in (*online, *offline)) + " |",
        "| --- | " + " | ".join("---:" for _ in (*online, *offline)) + " |",
    ]
    for trace in TRACES:
        shown = [
            f"{cell.first_half * 100:.1f} / {cell.second_half * 100:.1f}" if cell else ""
            for name in (*online, *offline)
            for cell in (at.get((trace, name, "400000", 1, "step")),)
        ]
        if any(shown):
            lines.append(f"| {trace} | " + " | ".join(shown) + " |")
    return "\n".join((*lines, ""))


def _cost(cells: Sequence[Cell]) -> str:
    at = {cell.place: cell for cell in cells}
    lines = [
        "## What it costs",
        "",
        "CPU time of planning per request, median / 99th percentile in microseconds, one at a "
        "time, 400k tokens; an offline plan's whole time is divided by its requests. Rounds: "
        "prefills one after the other per window, 32 in flight, finished sharing, 400k.",
        "",
        "| trace | online plan | online rounds | paper offline plan | paper offline rounds |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for trace in TRACES:
        shown: list[str] = []
        for name in ("online", "paper_offline"):
            one = at.get((trace, name, "400000", 1, "step"))
            many = at.get((trace, name, "400000", 32, "finished"))
            shown.append(f"{one.plan_us_p50:.0f} / {one.plan_us_p99:.0f}" if one else "")
            shown.append(f"{many.rounds:.1f}" if many else "")
        if any(shown):
            lines.append(f"| {trace} | " + " | ".join(shown) + " |")
    return "\n".join((*lines, ""))


def _pictures() -> str:
    return "\n".join(
        (
            "## Pictures",
            "",
            "![Hit ratio of every policy on every trace](img/reuse-policies.png)",
            "![Hit ratio with more in flight](img/reuse-in-flight.png)",
            "",
        )
    )


def plots(cells: Sequence[Cell], folder: Path) -> None:
    from matplotlib.figure import Figure

    at = {cell.place: cell for cell in cells}
    online, offline = shown_policies(cells)
    names = (*online, *offline)
    traces = [trace for trace in TRACES if (trace, "none", "400000", 1, "step") in at]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.9 / len(names)
    for number, name in enumerate(names):
        bars = [at.get((trace, name, "400000", 1, "step")) for trace in traces]
        places = [place + number * width for place, bar in enumerate(bars) if bar]
        axes.bar(
            places,
            [bar.hit for bar in bars if bar],
            width,
            label=SHORT.get(name, name),
            color=COLOURS[number],
        )
    axes.set_xticks([place + 0.4 for place in range(len(traces))], traces, rotation=20)
    axes.set_ylabel("share of block tokens from the cache")
    axes.set_title("400k tokens, one at a time")
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(folder / "reuse-policies.png", dpi=80)
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, trace in zip(figure.subplots(1, 3), ("multihoprag", "qasper", "mtrag"), strict=True):
        for number, name in enumerate(names):
            cells_at: list[Place] = [(trace, name, "400000", 1, "step")]
            cells_at += [(trace, name, "400000", n, "finished") for n in (8, 32)]
            known = [at[place] for place in cells_at if place in at]
            axes.plot(
                [str(cell.in_flight) for cell in known],
                [cell.hit for cell in known],
                marker="o",
                label=SHORT.get(name, name),
                color=COLOURS[number],
            )
        axes.set_title(trace)
        axes.set_xlabel("in flight, finished sharing")
        axes.set_ylim(bottom=0)
    figure.axes[0].set_ylabel("share from the cache, 400k tokens")
    figure.axes[0].legend(fontsize="x-small")
    figure.savefig(folder / "reuse-in-flight.png", dpi=80)
