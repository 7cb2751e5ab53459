"""`make chaos`: every fault under load, the fault table, and its copy in docs/operations.md.

Exit 0 only if no request was lost, nothing broke that the fault does not excuse, and the index
agreed with the engines again after each fault.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.chaos.faults import FAULTS, Fault, Outcome, suffer
from tests.chaos.fleet import KEY, Fleet, fleet
from tests.chaos.load import Load
from tests.chaos.table import HEADER, rows, write

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 60.0
REST_S = 3.0


def main() -> int:
    """Run once."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--docs", type=Path, help="a page with the table's marks")
    args = parser.parse_args()
    chosen = [fault for fault in FAULTS if args.only in fault.name]
    began = time.monotonic()
    outcomes = _run(chosen, args.clients, args.seed)
    seconds = time.monotonic() - began
    said = (
        f"Measured by `make chaos` (seed {args.seed}): 3 simulated engines, 2 ingresses, a Redis\n"
        f"of its own, {args.clients} clients, {os.cpu_count()} cores, {seconds / 60:.0f} minutes,\n"
        f"load average {os.getloadavg()[2]:.0f} over the last 15."
    )
    _show(outcomes, said)
    if args.docs:
        write(args.docs, outcomes, said)
    return 0 if all(outcome.held for outcome in outcomes) else 1


def _run(faults: Sequence[Fault], clients: int, seed: int) -> list[Outcome]:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray import serve

    folder = tempfile.mkdtemp(prefix="cp-")  # short: it becomes part of socket paths
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        _temp_dir=folder,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        with fleet(f"http://127.0.0.1:{port}", Path(folder) / "redis") as running:
            return asyncio.run(_all(running, faults, clients, seed))
    finally:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


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
    sys.exit(main())
