"""The demo's result: one row a workload and arm, and the ratios of plain to each other arm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cp_ray.demo.measure import Record


class Row(msgspec.Struct, frozen=True):
    """Sums over one workload in one arm. ttft: over answered requests, seconds.

    prefilled_tokens: prompt tokens less those the engine found in its cache, by its own count.
    """

    workload: str
    arm: str
    requests: int
    failed: int
    prompt_tokens: int
    prefilled_tokens: int
    hit_ratio: float
    ttft_mean_s: float
    ttft_p90_s: float
    wall_s: float


class Ratio(msgspec.Struct, frozen=True):
    """plain divided by the arm: 2.0 means half the tokens, or half the time."""

    workload: str
    arm: str
    prefilled_tokens: float
    ttft_mean: float


def summarize(workload: str, arm: str, records: Sequence[Record], wall_s: float) -> Row:
    """Sum up one workload of one arm; failed requests count in `requests` and `failed` only."""
    answers = [record.answer for record in records if record.answer is not None]
    prompt = sum(answer.prompt_tokens for answer in answers)
    prefilled = sum(answer.prefilled_tokens for answer in answers)
    ttfts = sorted(answer.ttft_s for answer in answers)
    return Row(
        workload=workload,
        arm=arm,
        requests=len(records),
        failed=len(records) - len(answers),
        prompt_tokens=prompt,
        prefilled_tokens=prefilled,
        hit_ratio=1 - prefilled / prompt if prompt else 0.0,
        ttft_mean_s=math.fsum(ttfts) / len(ttfts) if ttfts else math.nan,
        ttft_p90_s=ttfts[math.ceil(0.9 * len(ttfts)) - 1] if ttfts else math.nan,
        wall_s=wall_s,
    )


def ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Compare every other arm with plain; a workload without a plain row has none."""
    plain = {row.workload: row for row in rows if row.arm == "plain"}
    return [
        Ratio(
            row.workload,
            row.arm,
            _divide(plain[row.workload].prefilled_tokens, row.prefilled_tokens),
            _divide(plain[row.workload].ttft_mean_s, row.ttft_mean_s),
        )
        for row in rows
        if row.arm != "plain" and row.workload in plain
    ]


def show(rows: Sequence[Row], console: Console, *, caption: str) -> None:
    """Print the table and the ratios under it."""
    table = Table(
        box=SIMPLE_HEAD,
        # 80 columns are enough, so that nothing is cut in a plain terminal or a log.
        pad_edge=False,
        collapse_padding=True,
        caption=caption,
        caption_justify="left",
    )
    for name in ("workload", "arm"):
        table.add_column(name, no_wrap=True)
    for name in ("requests", "prompt\ntokens", "tokens\nprefilled", "hit\nratio"):
        table.add_column(name, justify="right")
    for name in ("mean\nTTFT", "p90\nTTFT"):
        table.add_column(name, justify="right", no_wrap=True)
    last: str | None = None
    for row in sorted(rows, key=lambda row: row.workload != rows[0].workload):
        if last not in (None, row.workload):
            table.add_section()
        last = row.workload
        table.add_row(
            row.workload,
            row.arm,
            f"{row.requests:,}" + (f" ({row.failed:,} failed)" if row.failed else ""),
            f"{row.prompt_tokens:,}",
            f"{row.prefilled_tokens:,}",
            f"{row.hit_ratio:.1%}",
            f"{row.ttft_mean_s:.3f} s",
            f"{row.ttft_p90_s:.3f} s",
        )
    console.print(table)
    for ratio in ratios(rows):
        console.print(
            f"{ratio.workload}: {ratio.arm} prefills {ratio.prefilled_tokens:.2f}x fewer tokens "
            f"than plain, mean TTFT {ratio.ttft_mean:.2f}x lower",
            highlight=False,
            soft_wrap=True,
        )


def _divide(a: float, b: float) -> float:
    return a / b if b else math.inf
