"""`make chaos`: every fault under load, the fault table, and its copy in docs/operations.md.

Exit 0 only if no request was lost, nothing broke that the fault does not excuse, and the index
agreed with the engines again after each fault.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cp_ray.demo.own_serve import start_serve
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.fleet import KEY, Fleet, fleet
from tests.chaos.hosts import Hosts, hosts
from tests.chaos.load import Load
from tests.chaos.suffering import Outcome, suffer
from tests.chaos.table import HEADER, rows, write

PATIENCE_S = 90.0
REST_S = 3.0


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--docs", type=Path, help="a page with the table's marks")
    args = parser.parse_args()
    chosen = [fault for fault in FAULTS if args.only in fault.name]
    began = time.monotonic()
    with _fleet() as (running, cluster):
        try:
            outcomes = asyncio.run(_all(running, chosen, args.clients, args.seed))
        except BaseException:
            traceback.print_exc()  # the way down may end this process before it is shown
            raise
        seconds = time.monotonic() - began
        said = (
            f"Measured by `make chaos` (seed {args.seed}): 3 emulated hosts, 3 simulated engines,\n"
            f"2 ingresses, 1 HTTP proxy, {args.clients} clients; {os.cpu_count()} cores, "
            f"{seconds / 60:.0f} minutes,\n"
            f"load average {os.getloadavg()[2]:.0f} over the last 15."
        )
        _show(outcomes, said)
        if args.docs:
            write(args.docs, outcomes, said)
        sys.stdout.flush()
        cluster.remove()
        os._exit(0 if all(outcome.held for outcome in outcomes) else 1)


@contextlib.contextmanager
def _fleet() -> Iterator[tuple[Fleet, Hosts]]:
    with hosts() as cluster:
        folder = cluster.folder / "redis"
        with fleet(start_serve(), folder, cluster) as running:
            yield running, cluster


async def _all(running: Fleet, faults: Sequence[Fault], clients: int, seed: int) -> list[Outcome]:
    rng = random.Random(seed)
    outcomes = []
    async with Load(running.base, clients, seed, KEY) as load:
        for fault in faults:
            await asyncio.sleep(REST_S)
            outcomes.append(await suffer(running, load, fault, rng, PATIENCE_S))
            print(outcomes[-1], flush=True)
    return outcomes


def _show(outcomes: Sequence[Outcome], said: str) -> None:
    console = Console(width=140)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(HEADER):
        table.add_column(name, justify="right" if number else "left")
    for row in rows(outcomes):
        table.add_row(*row)
    console.print(table)
    console.print(said, highlight=False)
    for outcome in outcomes:
        for wrong in outcome.wrong:
            console.print(f"WRONG {outcome.fault}: {wrong}", highlight=False, markup=False)
        if outcome.why_not:
            console.print(f"WRONG {outcome.fault}: {outcome.why_not}", markup=False)


if __name__ == "__main__":
    main()
