"""The whole grid of docs/fleet.md: `make bench-fleet`, or parts of it.

    python -m benchmarks.fleet --only multihoprag --cells 20     the next 20 cells of these parts
    python -m benchmarks.fleet --forget cp_ray                   its rows and its ablations'
    python -m benchmarks.fleet --report out/fleet                tables and plots of what is there

Rows are appended to benchmarks/results/fleet.jsonl, so that a run that was stopped goes on where it
was.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cp_ray.replay.fleet.bench import FleetOptions, FleetRow, bench_fleet, prepare
from cp_ray.replay.fleet.cell import Hardware, Model
from cp_ray.replay.fleet.registry import RIVALS
from cp_ray.replay.fleet.report import plot, table
from cp_ray.replay.fleet.saturation import saturation

DATA = Path(os.environ.get("CP_RAY_DATA", "../shared/data"))
OUT = Path(__file__).parent / "results"
LOADS = (0.8, 1.2, 0.5, 1.0)
SEEDS = (1, 2, 3)
STRONG = ("est_ttft", "lmetric", "llm_d", "dynamo")
"""The four rivals that are also given the paper's order."""
SEEDED = ("least_loaded", "est_ttft", "lmetric", "cp_ray")
"""Played with every seed before the others have their second."""
ABLATE = ("order", "schedule", "joint", "replication")


class Part(msgspec.Struct, frozen=True):
    """One workload on one fleet. requests: only the first, None = all."""

    trace: str
    requests: int | None
    replicas: int
    cache_tokens: int
    model: Model = "batching"

    @property
    def name(self) -> str:
        """Key of its saturation, and what --only looks for."""
        kilo = self.cache_tokens // 1000
        return f"{Path(self.trace).name.split('.')[0]} {self.replicas}x{kilo}k {self.model}"


TRACES = (
    ("multihoprag", None),
    ("qasper", 2500),
    ("mtrag", None),
    ("coa_multihoprag", 8000),
    ("mooncake/conversation_trace.runs.jsonl.gz", 4000),
    ("mooncake/synthetic_trace.runs.jsonl.gz", None),
)
PARTS = [
    *(
        Part(trace, requests, 16, 300_000, model)
        for model in ("batching", "serial")
        for trace, requests in TRACES[:2]
    ),
    *(Part(trace, requests, 16, 100_000) for trace, requests in TRACES),
    *(Part(trace, requests, 16, 100_000, "serial") for trace, requests in TRACES[:2]),
    *(Part(trace, requests, 32, 300_000) for trace, requests in TRACES[:2]),
    *(Part(trace, requests, 32, 100_000) for trace, requests in TRACES),
    *(Part(trace, requests, 16, 3_000_000) for trace, requests in TRACES[:1]),
]
"""The last is the control: every cache holds the whole working set."""


def arms(seed: int, strong: bool) -> Iterator[tuple[int, str, str, tuple[str, ...]]]:
    """Seed, policy, order, ablations. strong: those that decide, else all the others."""
    if strong:
        yield seed, "cp_ray", "none", ()
        yield from ((seed, policy, "paper", ()) for policy in STRONG)
        yield from ((seed, policy, "none", ()) for policy in SEEDED if policy != "cp_ray")
        return
    yield from ((seed, policy, "none", ()) for policy in RIVALS if policy not in SEEDED)
    yield seed, "paper", "none", ()
    yield seed, "cp_ray", "none", ABLATE


def cells(only: str, seeds: int) -> Iterator[tuple[Part, float, int, str, str, tuple[str, ...]]]:
    """The whole grid, what decides most first: every part's strong arms, then the rest."""
    for strong in (True, False):
        for seed in SEEDS[:seeds]:
            for part in PARTS:
                if only in part.name:
                    for arm in arms(seed, strong):
                        yield from ((part, load, *arm) for load in LOADS)


def options(part: Part, load: float, seed: int, policy: str, order: str) -> FleetOptions:
    return FleetOptions(
        trace=DATA / part.trace,
        hardware=Hardware(part.replicas, part.cache_tokens, part.model),
        loads=(load,),
        seeds=(seed,),
        policies=(policy,),
        orders=(order,),
        requests=part.requests,
    )


def rate_of(part: Part) -> float:
    """Found once, then kept."""
    file = OUT / "fleet_saturation.json"
    known: dict[str, float] = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
    if part.name not in known:
        workload = prepare(options(part, 1.0, 1, "least_loaded", "none"))
        known[part.name] = saturation(
            workload, Hardware(part.replicas, part.cache_tokens, part.model)
        )
        file.write_bytes(msgspec.json.encode(known))
    return known[part.name]


def read_rows() -> list[FleetRow]:
    file = OUT / "fleet.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=FleetRow) for line in lines]


def forget(policy: str) -> None:
    """Drop the rows of a policy that has changed, and of its ablations."""
    kept = [row for row in read_rows() if row.policy.partition("-")[0] != policy]
    (OUT / "fleet.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in kept))


def key(row: FleetRow) -> tuple[object, ...]:
    fleet = (row.trace, row.replicas, row.cache_tokens, row.model)
    return (*fleet, row.load, row.seed, row.policy, row.order)


def run(only: str, most: int | None, seeds: int) -> int:
    done = {key(row) for row in read_rows()}
    played = 0
    for part, load, seed, policy, order, ablate in cells(only, seeds):
        name = part.name.split()[0].removesuffix("_trace")
        shown = order if policy in RIVALS else "ours"
        fleet = (name, part.replicas, part.cache_tokens, part.model)
        wanted = [policy, *(f"{policy}-{one}" for one in ablate)]
        if all((*fleet, load, seed, arm, shown) in done for arm in wanted):
            continue
        if played == most:
            return played
        asked = msgspec.structs.replace(
            options(part, load, seed, policy, order), ablate=ablate, saturation_rps=rate_of(part)
        )
        for row in bench_fleet(asked):
            if key(row) not in done:
                done.add(key(row))
                with (OUT / "fleet.jsonl").open("ab") as out:
                    out.write(msgspec.json.encode(row) + b"\n")
        played += 1
        print(part.name, load, seed, policy, order, flush=True)
    return played


def report(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = sorted(
        read_rows(),
        key=lambda row: (row.trace, row.replicas, row.cache_tokens, row.model, row.load),
    )
    (folder / "tables.md").write_text(table(rows) + "\n")
    for fleet in dict.fromkeys((r.trace, r.replicas, r.cache_tokens, r.model) for r in rows):
        own = [r for r in rows if (r.trace, r.replicas, r.cache_tokens, r.model) == fleet]
        trace, replicas, tokens, model = fleet
        shown = [
            r for r in own if "-" not in r.policy and (r.policy in SEEDED or r.order == "paper")
        ]
        plot(shown, folder / f"{trace}-{replicas}x{tokens // 1000}k-{model}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument("--cells", type=int, help="stop after so many; 0 played = all is there")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--forget", metavar="POLICY", help="drop its rows, play nothing")
    parser.add_argument("--report", type=Path, help="write tables.md and plots, play nothing")
    args = parser.parse_args()
    if args.forget:
        forget(args.forget)
        return
    if args.report:
        report(args.report)
        return
    print(run(args.only, args.cells, args.seeds), "cells")


if __name__ == "__main__":
    main()
