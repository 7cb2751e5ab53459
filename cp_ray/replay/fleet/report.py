"""Rows of `bench fleet` as a table and as a plot: means over seeds with 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from cp_ray.replay.fleet.bench import FleetRow
from cp_ray.replay.report import draw

_T95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}
"""Student's t, two-sided 95%, by degrees of freedom; 2 beyond."""


class Group(msgspec.Struct, frozen=True):
    """Rows that differ only in their seed."""

    rows: tuple[FleetRow, ...]

    @property
    def arm(self) -> str:
        """Policy, with the order put in front of a rival."""
        first = self.rows[0]
        return f"{first.policy} + paper's order" if first.order == "paper" else first.policy

    def mean(self, field: str) -> float:
        """Over seeds."""
        return sum(float(getattr(row, field)) for row in self.rows) / len(self.rows)

    def half_width(self, field: str) -> float | None:
        """Of the 95% interval of the mean; None with one seed."""
        count = len(self.rows)
        if count < 2:
            return None
        mean = self.mean(field)
        variance = sum((float(getattr(row, field)) - mean) ** 2 for row in self.rows) / (count - 1)
        return _T95.get(count - 1, 2.0) * math.sqrt(variance / count)


def groups(rows: Sequence[FleetRow]) -> list[Group]:
    """By everything but the seed, in order of appearance."""
    found: dict[tuple[Any, ...], list[FleetRow]] = {}
    for row in rows:
        key = (row.trace, row.replicas, row.cache_tokens, row.model, row.arrivals, row.cost)
        found.setdefault((*key, row.load, row.policy, row.order), []).append(row)
    return [Group(tuple(members)) for members in found.values()]


def table(rows: Sequence[FleetRow]) -> str:
    """A Markdown table for each fleet and workload, one line a load and arm.

    Of a closed loop, first what no policy passes at that load.
    """
    parts: list[str] = []
    last: tuple[Any, ...] = ()
    bounded: tuple[Any, ...] = ()
    for group in groups(rows):
        row = group.rows[0]
        where = (row.trace, row.replicas, row.cache_tokens, row.model, row.arrivals, row.cost)
        if where != last:
            last = where
            rate = f", 1.0 = {row.saturation_rps:.2f} requests/s" if row.saturation_rps else ""
            parts.append(
                f"\n**{row.trace}**, {row.requests} requests, {row.replicas} replicas of "
                f"{row.cache_tokens:,} tokens, model `{row.model}`, {row.arrivals}{rate}"
                f"{f'; {row.cost}' if row.cost else ''}\n\n"
                "| load | policy | hit ratio | of blocks | mean TTFT, s | p50, s | p99, s "
                "| tokens/s | chains/s | imbalance |\n|---|---|" + 8 * "---:|"
            )
        if row.most_chains_per_s is not None and bounded != (*where, row.load):
            bounded = (*where, row.load)
            parts.append(
                f"| {row.load:g} | no policy passes | | | | | | | {row.most_chains_per_s:.2f} | |"
            )
        parts.append(
            f"| {row.load:g} | {group.arm} | {group.mean('hit_ratio'):.3f} "
            f"| {group.mean('block_hits'):.3f} "
            f"| {_with_interval(group, 'ttft_mean_s', 3)} | {group.mean('ttft_p50_s'):.3f} "
            f"| {_with_interval(group, 'ttft_p99_s', 2)} | {group.mean('throughput_tok_s'):,.0f} "
            f"| {group.mean('chains_per_s'):.2f} | {group.mean('imbalance'):.2f} |"
        )
    return "\n".join(parts).lstrip("\n")


def as_json(rows: Sequence[msgspec.Struct]) -> str:
    """A JSON array of objects with the rows' fields."""
    return msgspec.json.encode(list(rows)).decode()


def plot(rows: Sequence[FleetRow], file: Path) -> None:
    """Mean and p99 TTFT over load, a line an arm; the file's ending gives its format."""
    draw(file, lambda figure: _paint(groups(rows), figure), (10, 4))


def _paint(found: Sequence[Group], figure: Any) -> None:
    panels = figure.subplots(1, 2)
    for axes, field, name in zip(
        panels, ("ttft_mean_s", "ttft_p99_s"), ("mean TTFT, s", "p99 TTFT, s"), strict=True
    ):
        for arm in dict.fromkeys(group.arm for group in found):
            own = [group for group in found if group.arm == arm]
            axes.errorbar(
                [group.rows[0].load for group in own],
                [group.mean(field) for group in own],
                yerr=[group.half_width(field) or 0.0 for group in own],
                marker="o",
                linewidth=2.5 if arm == "cp_ray" else 1,
                label=arm,
            )
        axes.set_yscale("log")
        axes.set_xlabel("load, share of least_loaded's saturation")
        axes.set_ylabel(name)
    panels[0].legend(fontsize="x-small")
    first = found[0].rows[0]
    figure.suptitle(
        f"{first.trace}, {first.replicas} replicas of {first.cache_tokens:,} tokens, {first.model}"
    )


def _with_interval(group: Group, field: str, digits: int) -> str:
    half = group.half_width(field)
    mean = f"{group.mean(field):.{digits}f}"
    return mean if half is None else f"{mean} ± {half:.{digits}f}"
