"""Rows of `bench fleet --grow-from` as a table."""

from __future__ import annotations

from collections.abc import Sequence

from cp_ray.replay.fleet.growth import ENOUGH, GrowthRow

_NAMES = {"large": "all from the start", "cold": "grows", "warm": "grows, pre-warmed"}


def table(rows: Sequence[GrowthRow]) -> str:
    """A Markdown table for each fleet, rate and seed, one line a start."""
    parts: list[str] = []
    for row in rows:
        if row.start == "large":
            parts.append(
                f"\n**{row.trace}**, {row.grow_from} to {row.replicas} replicas of "
                f"{row.cache_tokens:,} tokens, model `{row.model}`, {row.rate:.1f} requests/s, "
                f"seed {row.seed}; the {row.seconds:.0f} s after; {ENOUGH:.0%} of the joining "
                f"replicas' steady hit ratio is {ENOUGH * row.steady:.3f}\n\n"
                "| fleet | joining replicas there after | the same, pre-warming counted as misses "
                "| hit ratio | mean TTFT, s | p99, s | prefilled | by pre-warming |\n"
                "|---|---:|---:|---:|---:|---:|---:|---:|"
            )
        parts.append(
            f"| {_NAMES[row.start]} | {_after(row.to_steady_s, row)} "
            f"| {_after(row.charged_s, row)} | {row.hit_ratio:.3f} "
            f"| {row.ttft_mean_s:.3f} | {row.ttft_p99_s:.2f} "
            f"| {row.prefilled:,} | {row.warmed:,} |"
        )
    return "\n".join(parts).lstrip("\n")


def _after(seconds: float | None, row: GrowthRow) -> str:
    return f"not in {row.seconds:.0f} s" if seconds is None else f"{seconds:.1f} s"
