"""Dynamo's own fleet simulator on our traces: a referee that none of our code takes part in.

    python -m benchmarks.rivals.dynosim --trace DATA/multihoprag --load 0.8 --speedup 1,4

The trace goes to `ai-dynamo-runtime`'s replay as Mooncake's rows of 16-token blocks, through its
own model of vLLM and its own routers: with blocks as retrieved, in the order of the paper's
algorithms, and as cp_ray sends them. The replica is Dynamo's choice each time. Its engines are
faster than our model's: the speed-up brings the same arrivals closer together.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.rivals.block_events import BLOCK, block_hashes
from benchmarks.rivals.known import KNOWN
from benchmarks.rivals.prompts import token_ids
from cp_ray.core.types import Eviction
from cp_ray.errors import ConfigError, CpRayError
from cp_ray.replay.fleet.bench import FleetOptions, prepare
from cp_ray.replay.fleet.cell import Cell, fleet_of, play
from cp_ray.replay.fleet.command import add_arguments, options_of
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.registry import make_router
from cp_ray.replay.fleet.router import Router
from cp_ray.replay.fleet.saturation import saturation
from cp_ray.replay.fleet.view import FleetView
from cp_ray.replay.fleet.workload import Workload


class Recorder:
    """Passes everything on to a router, and keeps the requests as they were sent."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.sent: list[Live] = []

    def route(self, window: Sequence[Live], view: FleetView, now: float) -> Any:
        for live in self._router.route(window, view, now):
            self.sent.append(live)
            yield live

    def first_token(self, live: Live, now: float) -> None:
        self._router.first_token(live, now)

    def ended(self, live: Live, now: float) -> None:
        self._router.ended(live, now)

    def evicted(self, replica: int, evictions: Sequence[Eviction], /) -> None:
        self._router.evicted(replica, evictions)


ORDERS = {
    "as retrieved": ("round_robin", "none"),
    "the paper's": ("dynamo", "paper"),
    "cp_ray's": ("cp_ray", "ours"),
}
"""The policy and order that play first, to see how requests are sent."""


def sent_by(workload: Workload, cell: Cell) -> list[Live]:
    """The requests of a cell as its policy sends them, in order of arrival."""
    fleet = fleet_of(cell.hardware, cell.seed)
    recorder = Recorder(make_router(cell.policy, cell.order, fleet))
    play(workload, cell, recorder)
    return sorted(recorder.sent, key=lambda live: live.arrived_s)


def write_rows(path: Path, sent: Sequence[Live]) -> None:
    """One line a request; equal numbers are equal blocks after equal prefixes."""
    numbers: dict[int, int] = {}
    with path.open("wb") as file:
        for live in sent:
            # What is left of the last block is a block of its own.
            hashes = [*block_hashes(token_ids(live.pieces))]
            ids = [numbers.setdefault(block, len(numbers)) for block in hashes]
            if live.prompt_tokens % BLOCK:
                ids.append(len(numbers))
                numbers[-len(numbers)] = ids[-1]
            row = {
                "timestamp": round(live.arrived_s * 1000),
                "input_length": live.prompt_tokens,
                "output_length": live.job.output_tokens,
                "hash_ids": ids,
            }
            file.write(msgspec.json.encode(row) + b"\n")


def replay(path: Path, options: FleetOptions, mode: str, speedup: float) -> dict[str, float]:
    """Dynamo's summary. mode: of its router."""
    os.environ.setdefault("DYN_LOG", "error")
    from dynamo._core import KvRouterConfig, run_mocker_trace_replay

    blocks = options.hardware.cache_tokens // BLOCK
    result = run_mocker_trace_replay(
        [str(path)],
        extra_engine_args={"engine": {"block_size": BLOCK, "num_gpu_blocks": blocks}},
        router_config=KvRouterConfig() if mode == "kv_router" else None,
        num_workers=options.hardware.replicas,
        router_mode=mode,
        trace_block_size=BLOCK,
        arrival_speedup_ratio=speedup,
    )
    summary: dict[str, float] = result.summary
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--speedup", default="1", help="of arrivals; several by commas")
    args = parser.parse_args()
    try:
        options = options_of(args)
        version = KNOWN["dynamo"].version()
        workload = prepare(options)
        if any(job.after for job in workload.jobs):
            raise ConfigError("--trace: one of single requests; here some wait for others")
        rate = options.saturation_rps or saturation(workload, options.hardware)
        speedups = [float(part) for part in args.speedup.split(",")]
    except (CpRayError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print(f"ai-dynamo-runtime {version}, its replay and its model of the engines")
    print("| trace, load | arrivals | order | its router | hit ratio | mean / p99 TTFT, s |")
    print("|---|---:|---|---|---:|---:|")
    for load in options.loads:
        for order, (policy, by) in ORDERS.items():
            cell = Cell(options.hardware, policy, by, "poisson", load * rate, options.seeds[0])
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace.jsonl"
                write_rows(path, sent_by(workload, cell))
                for speedup, mode in itertools.product(speedups, ("round_robin", "kv_router")):
                    made = replay(path, options, mode, speedup)
                    print(
                        f"| {workload.name}, {load:g} | {speedup:g}x | {order} | {mode} "
                        f"| {made['prefix_cache_reused_ratio']:.3f} "
                        f"| {made['mean_ttft_ms'] / 1e3:.3f} / {made['p99_ttft_ms'] / 1e3:.2f} |",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
