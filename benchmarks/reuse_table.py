"""docs/reuse.md from replays: every trace, cache, number in flight and policy.

    python -m benchmarks.reuse_table run [--policies P,..] [--traces "T;.."]  what is missing
    python -m benchmarks.reuse_table forget --policies P,..                 to measure them anew
    python -m benchmarks.reuse_table write                                  tables and plots

`run` keeps each cell in benchmarks/results/reuse.jsonl as soon as it is there, and begins where
it stopped. About 40 minutes on one free core.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tqdm import tqdm

from cp_ray.core.prefix_cache import Sharing
from cp_ray.replay.registry import ALL
from cp_ray.replay.reuse import Bench, ReuseOptions

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("CP_RAY_DATA", ROOT.parent / "shared" / "data"))
RESULTS = ROOT / "benchmarks" / "results" / "reuse.jsonl"
PAGE = ROOT / "docs" / "reuse.md"
IMAGES = ROOT / "docs" / "img"
BEGIN, END = "<!-- from here on by benchmarks/reuse_table.py -->", "<!-- end of what it wrote -->"

TRACES = {
    "multihoprag": "multihoprag",
    "qasper": "qasper",
    "mtrag": "mtrag",
    "mtrag, last turn": "mtrag/trace_pool_bm25_last1.jsonl.gz",
    "mtrag, all turns": "mtrag/trace_pool_bm25_hist.jsonl.gz",
    "locomo top 20": "locomo_mem/trace_top20_minilm.jsonl.gz",
    "fairytaleqa_100": "fairytaleqa_100",
    "locomo top 100": "locomo_mem/trace_top100_minilm.jsonl.gz",
    "fairytaleqa_100_bm25": "fairytaleqa_100_bm25",
    "fairytaleqa_250_bm25": "fairytaleqa_250_bm25",
}
CACHES = ("100000", "400000", "inf")
SHOWN = {"100000": "100k", "400000": "400k", "inf": "inf"}
IN_FLIGHT: tuple[tuple[int, Sharing], ...] = (
    (1, "step"),
    (8, "step"),
    (32, "step"),
    (8, "finished"),
    (32, "finished"),
)
"""One at a time, both ways of sharing are the same."""
ONLINE = ("none", "radix_lpm", "lmcache", "paper", "online")
OFFLINE = ("frequency", "paper_offline", "plan", "offline")
"""Names that `bench reuse` does not know yet are left out."""
AUTHORS = "authors_plan.jsonl.gz"

Place = tuple[str, str, str, int, Sharing]
"""Trace, policy, cache, in flight, sharing."""


class Cell(msgspec.Struct, frozen=True):
    trace: str
    policy: str
    cache: str
    in_flight: int
    sharing: Sharing
    hit: float
    first_half: float
    second_half: float
    ceiling: float
    prefill_tokens: int
    rounds: float
    plan_us_p50: float
    plan_us_p99: float

    @property
    def place(self) -> Place:
        return (self.trace, self.policy, self.cache, self.in_flight, self.sharing)


def read_cells() -> list[Cell]:
    if not RESULTS.exists():
        return []
    return [msgspec.json.decode(line, type=Cell) for line in RESULTS.read_bytes().splitlines()]


def write_cells(cells: list[Cell]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    partial = RESULTS.with_suffix(".partial")
    partial.write_bytes(b"".join(msgspec.json.encode(cell) + b"\n" for cell in cells))
    partial.replace(RESULTS)


def wanted(policies: tuple[str, ...], traces: tuple[str, ...]) -> Iterator[Place]:
    for trace in traces:
        path = TRACES[trace]
        for policy in policies:
            known = (DATA / path / AUTHORS).exists() if policy == "plan" else policy in ALL
            if not known:
                continue
            for cache in CACHES:
                for in_flight, sharing in IN_FLIGHT:
                    yield trace, policy, cache, in_flight, sharing


def measure(bench: Bench, place: Place) -> Cell:
    trace, policy, cache, in_flight, sharing = place
    path = DATA / TRACES[trace]
    (row,) = bench.run(
        ReuseOptions(
            trace=path,
            policies=(f"plan:{path / AUTHORS}" if policy == "plan" else policy,),
            cache_tokens=None if cache == "inf" else int(cache),
            in_flight=in_flight,
            in_flight_sharing=sharing,
        )
    )
    return Cell(
        *place,
        hit=round(row.hit_ratio, 4),
        first_half=round(row.first_half, 4),
        second_half=round(row.second_half, 4),
        ceiling=round(row.ceiling or 0.0, 4),
        prefill_tokens=round(row.prefill_tokens),
        rounds=round(row.rounds, 2),
        plan_us_p50=round(row.plan_us_p50, 1),
        plan_us_p99=round(row.plan_us_p99, 1),
    )


def run(policies: tuple[str, ...], traces: tuple[str, ...], pause: Path | None) -> None:
    cells = read_cells()
    known = {cell.place for cell in cells}
    bench, of = Bench(), ("", "")
    missing = [place for place in wanted(policies, traces) if place not in known]
    for place in tqdm(missing, disable=None):
        while pause is not None and pause.exists():
            time.sleep(5)
        if place[:2] != of:
            bench, of = Bench(), place[:2]
        cells.append(measure(bench, place))
        write_cells(cells)


def write() -> None:
    from benchmarks.reuse_page import plots, tables

    cells = read_cells()
    IMAGES.mkdir(exist_ok=True)
    plots(cells, IMAGES)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(cells)}\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "forget", "write"))
    parser.add_argument("--policies", default=",".join((*ONLINE, *OFFLINE)))
    parser.add_argument("--traces", help=f"by ';', of: {'; '.join(TRACES)}")
    parser.add_argument("--pause-while", type=Path, help="begin no cell while this file exists")
    args = parser.parse_args()
    policies = tuple(name for name in args.policies.split(",") if name)
    if args.what == "write":
        write()
    elif args.what == "forget":
        write_cells([cell for cell in read_cells() if cell.policy not in policies])
    else:
        traces = tuple(name.strip() for name in args.traces.split(";")) if args.traces else ()
        run(policies, traces or tuple(TRACES), args.pause_while)
    return 0


if __name__ == "__main__":
    sys.exit(main())
