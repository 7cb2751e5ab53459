"""Rivals' own packages on a trace, beside our copies of their policies (docs/fleet.md).

    python -m benchmarks.rivals --trace DATA/multihoprag --cache-tokens 100000 --load 0.8,1.2

Each rival decides in our simulator, by its own code; in every state it decides in, our copy of its
policy is asked too. Then the copy plays the same cell alone. `pip install 'cp-ray[bench]'`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import msgspec

from benchmarks.rivals.known import KNOWN
from benchmarks.rivals.prompts import distinct_text_of, text_of
from benchmarks.rivals.rival import SideBySide
from cp_ray.errors import ConfigError, CpRayError
from cp_ray.replay.fleet.bench import FleetOptions, prepare
from cp_ray.replay.fleet.cell import Cell, Outcome, fleet_of, play
from cp_ray.replay.fleet.command import add_arguments, options_of
from cp_ray.replay.fleet.registry import RIVALS
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.saturation import saturation
from cp_ray.replay.fleet.workload import Workload


class RivalRow(msgspec.Struct, frozen=True):
    """A cell played by a rival's code, and by our copy. sent: requests of each replica."""

    trace: str
    rival: str
    version: str
    what: str
    copy: str | None
    load: float
    seed: int
    requests: int
    theirs: Outcome
    ours: Outcome | None
    same: int
    tied: int
    sent: list[int]


def play_rival(
    workload: Workload, cell: Cell, name: str, load: float, *, distinct: bool
) -> RivalRow:
    """One cell, by the rival beside our copy. load: what its rate was made of."""
    hardware, known = cell.hardware, KNOWN[name]
    copy = RIVALS[known.copy](fleet_of(hardware, cell.seed)) if known.copy else None
    if not isinstance(copy, OneByOne | None):
        raise TypeError(f"{known.copy} does not place requests singly")
    encode = distinct_text_of if distinct and known.encode is text_of else known.encode
    rival = known.make(hardware.replicas, encode)
    try:
        router = SideBySide(rival, copy, hardware.replicas)
        theirs = play(workload, cell, router)
    finally:
        rival.close()
    tally = router.tally
    return RivalRow(
        trace=workload.name,
        rival=name,
        version=known.version(),
        what=known.what,
        copy=known.copy,
        load=load,
        seed=cell.seed,
        requests=tally.asked,
        theirs=theirs,
        ours=None,
        same=tally.same,
        tied=tally.tied,
        sent=router.sent,
    )


def rows(options: FleetOptions, names: list[str], *, distinct: bool) -> Iterator[RivalRow]:
    """Every rival in every cell, and its copy alone."""
    workload = prepare(options)
    rate = options.saturation_rps or saturation(workload, options.hardware)
    for load in options.loads:
        for seed in options.seeds:
            alone: dict[str, Outcome] = {}
            for name in names:
                copy = KNOWN[name].copy
                cell = Cell(
                    options.hardware, copy or name, "none", options.arrivals, load * rate, seed
                )
                row = play_rival(workload, cell, name, load, distinct=distinct)
                if copy and copy not in alone:
                    alone[copy] = play(workload, cell)
                yield msgspec.structs.replace(row, ours=alone.get(copy or ""))


HEAD = (
    "| trace, load | rival's own code | mean / p99 TTFT, s | hit ratio | requests of a replica "
    "| our copy: mean / p99 | hit ratio | chose the same, or as good |\n"
    "|---|---|---:|---:|---|---:|---:|---:|"
)


def line(row: RivalRow) -> str:
    """Of the table in docs/fleet.md."""
    theirs, ours = row.theirs, row.ours
    text = (
        f"| {row.trace}, {row.load:g} | {row.rival} {row.version}, {row.what} "
        f"| {theirs.ttft_mean_s:.3f} / {theirs.ttft_p99_s:.2f} | {theirs.hit_ratio:.3f} "
        f"| {min(row.sent)} to {max(row.sent)} "
    )
    if ours is None:
        return f"{text}| none | | |"
    return (
        f"{text}| `{row.copy}` {ours.ttft_mean_s:.3f} / {ours.ttft_p99_s:.2f} "
        f"| {ours.hit_ratio:.3f} "
        f"| {row.same / row.requests:.1%}, {(row.same + row.tied) / row.requests:.1%} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--rival", default=",".join(KNOWN), help=", ".join(KNOWN))
    parser.add_argument(
        "--distinct", action="store_true", help="no two blocks' texts begin with the same character"
    )
    args = parser.parse_args()
    names = [name.strip() for name in args.rival.split(",") if name.strip()]
    try:
        for name in names:
            if name not in KNOWN:
                raise ConfigError(f"--rival: {name!r} is not one of {', '.join(KNOWN)}")
        there = [name for name in names if KNOWN[name].installed]
        for name in names:
            if name not in there:
                sys.stderr.write(f"{name}: {KNOWN[name].package} is not installed\n")
        if not args.json:
            print(HEAD)
        for row in rows(options_of(args), there, distinct=args.distinct):
            print(msgspec.json.encode(row).decode() if args.json else line(row), flush=True)
    except CpRayError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
