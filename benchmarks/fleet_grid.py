"""What `make bench-fleet` plays: parts (a workload on a fleet), arms, loads and seeds.

Traces, fleets, loads, seeds and policies are those of the issue. Smaller than they could be: how
much of three traces is played (`requests`), each long enough to fill every cache several times.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import msgspec

from benchmarks.data import folder
from cp_ray.replay.fleet.bench import FleetOptions, FleetRow, prepare
from cp_ray.replay.fleet.cell import Cell, Hardware, Model
from cp_ray.replay.fleet.registry import RIVALS
from cp_ray.replay.fleet.workload import Workload

LOADS = ((0.8, 1.2), (0.5, 1.0))
"""Shares of the saturation of least_loaded; the first pair is played everywhere first."""
SEEDS = (1, 2, 3)
STRONG = ("est_ttft", "lmetric", "llm_d", "dynamo")
"""The four rivals that are also given the paper's order."""
FIRST = ("cp_ray", "least_loaded", "est_ttft", "lmetric")
"""Played with every seed before the others have their first."""
ABLATE = ("order", "schedule", "joint", "replication")
"""`leaders` has no arm: engines that share pages as they are allocated need none (ADR 0005)."""
SATURATED = ("cp_ray", "round_robin")
OVERLOADS = (2.5, 3.0, 4.0)
"""Beyond what anybody serves (at 2.5 hardly, on 32 replicas): what is served meanwhile, cold caches
and all, is the throughput at saturation. Played by `SATURATED` where `saturating` says so. The rate
up to which a queue stays bounded would not do: one that is longest while the caches are cold never
seems to grow (`replay/fleet/saturation.py`)."""


class Part(msgspec.Struct, frozen=True):
    """One workload on one fleet. requests: only the first, None = all.

    again: the trace twice, of which only the second time counts.
    """

    trace: str
    requests: int | None
    replicas: int
    cache_tokens: int
    model: Model = "batching"
    overlap: bool = True
    again: bool = False

    @property
    def name(self) -> str:
        """Key of its saturation, and what --only looks for."""
        short = Path(self.trace).name.split(".")[0].removesuffix("_trace")
        short += "" if self.overlap else "_no_overlap"
        short += "_x2_warm" if self.again else ""
        return f"{short} {self.replicas}x{self.cache_tokens // 1000}k {self.model}"

    @property
    def hardware(self) -> Hardware:
        """Its fleet."""
        return Hardware(self.replicas, self.cache_tokens, self.model)

    def workload(self) -> Workload:
        """Read from the trace; takes up to a second."""
        return prepare(
            FleetOptions(
                folder() / self.trace,
                self.hardware,
                requests=self.requests,
                overlap=self.overlap,
                repeat=2 if self.again else 1,
                warm=1 if self.again else 0,
            )
        )


class GridCell(msgspec.Struct, frozen=True):
    """One row to be. load: share of the part's saturation."""

    part: Part
    load: float
    seed: int
    policy: str
    order: str

    @property
    def name(self) -> str:
        """For the progress bar."""
        order = " + paper" if self.order == "paper" else ""
        return f"{self.part.name}, {self.load:g}, seed {self.seed}, {self.policy}{order}"

    @property
    def key(self) -> tuple[object, ...]:
        """The same as `row_key` of its row."""
        part = self.part
        trace = part.name.split()[0]
        fleet = (trace, part.replicas, part.cache_tokens, part.model)
        return (*fleet, self.load, self.seed, self.policy, self.order)

    def cell(self, saturation_rps: float) -> Cell:
        """What is played."""
        rate = self.load * saturation_rps
        return Cell(self.part.hardware, self.policy, self.order, "poisson", rate, self.seed)


def fleet_of(row: FleetRow) -> tuple[str, int, int, Model]:
    """The part that a row belongs to."""
    return row.trace, row.replicas, row.cache_tokens, row.model


def row_key(row: FleetRow) -> tuple[object, ...]:
    """What makes two rows the same cell."""
    return (*fleet_of(row), row.load, row.seed, row.policy, row.order)


TRACES = (
    ("multihoprag", None),
    ("qasper", 2500),
    ("mtrag", None),
    ("coa_multihoprag", 8000),
    ("mooncake/conversation_trace.runs.jsonl.gz", 4000),
    ("mooncake/synthetic_trace.runs.jsonl.gz", None),
)
PARTS = (
    *(
        Part(trace, requests, 16, 300_000, model)
        for model in ("batching", "serial")
        for trace, requests in TRACES[:2]
    ),
    *(Part(trace, requests, 16, 100_000) for trace, requests in TRACES),
    *(Part(trace, requests, 16, 100_000, "serial") for trace, requests in TRACES[:2]),
    *(Part(trace, requests, 32, 300_000) for trace, requests in TRACES[:2]),
    *(Part(trace, requests, 32, 100_000) for trace, requests in TRACES),
    *(
        Part(trace, requests, 32, tokens, "serial")
        for tokens in (300_000, 100_000)
        for trace, requests in TRACES[:2]
    ),
)
ROOMY = Part("multihoprag", None, 16, 3_000_000)
"""Every cache holds all that it is ever sent, and begins empty."""
CONTROL = msgspec.structs.replace(ROOMY, again=True)
"""And has been sent every prompt before: there is nothing to gain any more."""
APART = tuple(
    Part("multihoprag", None, 16, 300_000, model, overlap=False) for model in ("batching", "serial")
)
"""No two requests share a block."""


def arms(part: Part, strong: bool) -> list[str]:
    """Policies, "lmetric paper" for one with the paper's order; strong: those that decide."""
    if part == CONTROL:
        return list(FIRST) if strong else []
    if part in APART:
        return ["cp_ray", "least_loaded"] if strong else []
    if strong:
        ordered = () if part.trace.startswith("mooncake") else STRONG  # its blocks cannot be moved
        return ["cp_ray", *(f"{policy} paper" for policy in ordered), *FIRST[1:]]
    others = [policy for policy in RIVALS if policy not in FIRST]
    return [*others, "paper", *(f"cp_ray-{one}" for one in ABLATE)]


def at(part: Part, load: float, seed: int, arm: str) -> GridCell:
    """One arm's cell. Policies that order by themselves are shown as `ours`."""
    policy, _, order = arm.partition(" ")
    order = (order or "none") if policy in RIVALS else "ours"
    return GridCell(part, load, seed, policy, order)


def saturating(only: str = "") -> list[Part]:
    """Parts of which a goal says how much they serve at saturation."""
    return [part for part in PARTS if part.trace == "multihoprag" and only in part.name]


def cells(
    only: str = "", seeds: int = len(SEEDS), strong_alone: bool = False
) -> Iterator[GridCell]:
    """The whole grid, what decides most first: every part's strong arms, then the rest.

    seeds: 1 to so many; more than SEEDS where these do not tell two policies apart.
    """
    parts = [part for part in (*PARTS, ROOMY, CONTROL, *APART) if only in part.name]
    for strong in (True,) if strong_alone else (True, False):
        for seed, loads in product(range(1, seeds + 1), LOADS):
            for part in parts:
                for arm in arms(part, strong):
                    yield from (at(part, load, seed, arm) for load in loads_of(part, loads))
    for part, seed in product(saturating(only), range(1, seeds + 1)):
        yield from (at(part, load, seed, arm) for load in OVERLOADS for arm in SATURATED)


def loads_of(part: Part, loads: tuple[float, ...]) -> tuple[float, ...]:
    """The control's are those whose first time, which it does not count, leaves no backlog."""
    return tuple(load for load in loads if part != CONTROL or load < 1.0)
