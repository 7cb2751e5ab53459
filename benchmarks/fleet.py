"""The whole grid of docs/fleet.md: `make bench-fleet`, or parts of it.

    python -m benchmarks.fleet --only multihoprag --cells 20     the next 20 cells of these parts
    python -m benchmarks.fleet --forget cp_ray                   its rows and its ablations'
    python -m benchmarks.fleet --report out/fleet                tables, verdicts and plots
    python -m benchmarks.fleet --results out/twelve --seeds 12 --strong --only "mtrag 16x100k"

A row is appended to benchmarks/results/fleet.jsonl as soon as its cell was played, so that a run
that was stopped goes on where it was. Processes share nothing but the traces on disk: virtual time
is the same however many there are.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import TypeVar

import msgspec
from tqdm import tqdm

from benchmarks.fleet_grid import (
    FIRST,
    OVERLOADS,
    SEEDS,
    GridCell,
    Part,
    cells,
    fleet_of,
    row_key,
)
from benchmarks.fleet_summary import ablations, summary
from benchmarks.fleet_verdicts import verdicts
from cp_ray.compiling import is_compiled
from cp_ray.replay.fleet.bench import FleetRow, play_row
from cp_ray.replay.fleet.report import plot, table
from cp_ray.replay.fleet.saturation import saturation
from cp_ray.replay.fleet.workload import Workload

RESULTS = Path(__file__).parent / "results"
K = TypeVar("K")
V = TypeVar("V")
AHEAD = 2
"""Cells handed out per process: enough that none waits, few enough that a stop loses little."""


@lru_cache(maxsize=2)
def workload_of(part: Part) -> Workload:
    """Read once in a process: cells of a part come one after the other."""
    return part.workload()


def play_cell(cell: GridCell, saturation_rps: float) -> FleetRow:
    """In whatever process."""
    played = cell.cell(saturation_rps)
    return play_row(workload_of(cell.part), played, cell.load, saturation_rps)


def saturation_of(part: Part) -> float:
    """In whatever process; some twenty cells' work."""
    return saturation(workload_of(part), part.hardware)


class Results:
    """The files of one run: rows, and the saturation of each part by its name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._rows = folder / "fleet.jsonl"
        self._saturation = folder / "fleet_saturation.json"

    def rows(self) -> list[FleetRow]:
        lines = self._rows.read_bytes().splitlines() if self._rows.exists() else []
        return [msgspec.json.decode(line, type=FleetRow) for line in lines]

    def add(self, row: FleetRow) -> None:
        with self._rows.open("ab") as out:
            out.write(msgspec.json.encode(row) + b"\n")

    def forget(self, policy: str) -> None:
        """Drop the rows of a policy that has changed, and of its ablations."""
        kept = [row for row in self.rows() if row.policy.partition("-")[0] != policy]
        self._rows.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in kept))

    def saturations(self) -> dict[str, float]:
        file = self._saturation
        return msgspec.json.decode(file.read_bytes()) if file.exists() else {}

    def keep(self, name: str, rate: float) -> None:
        known = self.saturations() | {name: rate}
        self._saturation.write_bytes(msgspec.json.format(msgspec.json.encode(known)))


def run(results: Results, wanted: Iterable[GridCell], most: int | None, jobs: int) -> int:
    """Play what is not there yet; how many cells that were."""
    done = {row_key(row) for row in results.rows()}
    todo = [cell for cell in wanted if cell.key not in done][:most]
    parts = list(dict.fromkeys(cell.part for cell in todo))
    planner = "compiled" if is_compiled() else "not compiled, so slower"
    print(
        f"{len(todo)} cells of {len(parts)} parts to play, {len(done)} are there; "
        f"{jobs} processes, planner {planner}",
        flush=True,
    )
    with ProcessPoolExecutor(jobs) as pool:
        sizes = {part: part.requests or len(workload_of(part).jobs) for part in parts}
        began, played = monotonic(), 0
        total = sum(sizes[cell.part] for cell in todo)
        with tqdm(total=total, unit="request", unit_scale=True, mininterval=2) as bar:
            for cell, row in _ahead(_submitted(results, todo, pool), jobs):
                results.add(row.result())
                played += sizes[cell.part]
                left_s = (monotonic() - began) * (total - played) / played
                bar.set_postfix_str(f"{left_s / 3600:.1f} h left, {cell.name}", refresh=False)
                bar.update(sizes[cell.part])
    return len(todo)


def _submitted(
    results: Results, todo: Iterable[GridCell], pool: ProcessPoolExecutor
) -> Iterator[tuple[GridCell, Future[FleetRow]]]:
    """Each cell as it is handed out; before a part's first one its saturation is looked for."""
    rates = results.saturations()
    for cell in todo:
        part = cell.part
        if part.name not in rates:
            rates[part.name] = pool.submit(saturation_of, part).result()
            results.keep(part.name, rates[part.name])
        yield cell, pool.submit(play_cell, cell, rates[part.name])


def _ahead(work: Iterator[tuple[K, Future[V]]], jobs: int) -> Iterator[tuple[K, Future[V]]]:
    """Work as it ends. `work` submits while it is iterated: only a little at a time."""
    key_of: dict[Future[V], K] = {}
    while True:
        more = itertools.islice(work, jobs * AHEAD - len(key_of))
        key_of |= {future: key for key, future in more}
        if not key_of:
            return
        ended, _ = wait(key_of, return_when=FIRST_COMPLETED)
        for future in ended:
            yield key_of.pop(future), future


def report(results: Results, folder: Path) -> None:
    """All rows as tables, the same on a page, verdicts, and a plot for each part."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = sorted(results.rows(), key=lambda row: (*fleet_of(row), row.load))
    (folder / "tables.md").write_text(table(rows) + "\n")
    (folder / "summary.md").write_text(f"{summary(rows)}\n\n{ablations(rows)}\n")
    judged = verdicts(rows)
    (folder / "verdicts.md").write_text(judged + "\n")
    print(judged)
    for fleet, members in itertools.groupby(rows, key=fleet_of):
        shown = [
            row
            for row in members
            if row.load not in OVERLOADS and (row.policy in FIRST or row.order == "paper")
        ]
        trace, replicas, tokens, model = fleet
        plot(shown, folder / f"{trace}-{replicas}x{tokens // 1000}k-{model}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument("--cells", type=int, help="stop after so many")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="1 to so many")
    parser.add_argument(
        "--strong", action="store_true", help="only the arms that decide, and overload"
    )
    parser.add_argument("--arms", choices=("ours", "rivals"), help="cp_ray's cells alone, or not")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the rows")
    parser.add_argument("--forget", metavar="POLICY", help="drop its rows, play nothing")
    parser.add_argument("--report", type=Path, help="write tables and plots there, play nothing")
    args = parser.parse_args()
    results = Results(args.results)
    if args.forget:
        results.forget(args.forget)
    elif args.report:
        report(results, args.report)
    else:
        grid = cells(args.only, args.seeds, args.strong)
        ours = {"ours": True, "rivals": False}.get(args.arms)
        wanted = [cell for cell in grid if ours in (None, cell.policy.startswith("cp_ray"))]
        print(run(results, wanted, args.cells, args.jobs), "cells played")


if __name__ == "__main__":
    main()
