"""`cp-ray bench fleet`: cells of one workload, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay.fleet.ceiling import chains_ceiling
from cp_ray.replay.fleet.cell import Arrivals, Cell, Hardware, Model, play, step_cost
from cp_ray.replay.fleet.clock import SerialRates
from cp_ray.replay.fleet.policies.without import ARMS
from cp_ray.replay.fleet.registry import RIVALS
from cp_ray.replay.fleet.saturation import saturation
from cp_ray.replay.fleet.workload import (
    Workload,
    fitting,
    read_workload,
    repeated,
    without_answers,
    without_overlap,
)


class FleetOptions(msgspec.Struct, frozen=True):
    """What to play: every combination of loads, policies, orders and seeds.

    loads: shares of the rate at which least_loaded saturates; clients per replica where arrivals
    are `closed`. orders: of rivals (`none`, `paper`). saturation_rps: None = find it first.
    overlap: False = the same sizes with blocks of which no two requests share one.
    answers: False = one token each, prefill alone. warm: of the times that the trace is repeated,
    the first ones, which are not counted.
    """

    trace: Path
    hardware: Hardware
    loads: tuple[float, ...] = (0.8,)
    arrivals: Arrivals = "poisson"
    seeds: tuple[int, ...] = (1,)
    policies: tuple[str, ...] = ("least_loaded", "est_ttft", "cp_ray")
    orders: tuple[str, ...] = ("none",)
    ablate: tuple[str, ...] = ()
    requests: int | None = None
    repeat: int = 1
    warm: int = 0
    saturation_rps: float | None = None
    overlap: bool = True
    answers: bool = True


class FleetRow(msgspec.Struct, frozen=True):
    """One cell. Rates in requests a second, times in seconds; the rest as in `cell.Outcome`.

    Of closed loops, most_chains_per_s: what no policy passes, and cost: how many chains there are
    and what prefill and answers cost, as it is said.
    """

    trace: str
    requests: int
    replicas: int
    cache_tokens: int
    model: Model
    arrivals: Arrivals
    saturation_rps: float | None
    load: float
    seed: int
    policy: str
    order: str
    hit_ratio: float
    block_hits: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    throughput_tok_s: float
    chains_per_s: float
    imbalance: float
    plan_us: float
    most_chains_per_s: float | None = None
    cost: str = ""


def arms(options: FleetOptions) -> Iterator[tuple[str, str]]:
    """Policy and order of each arm: rivals in every order asked for, ours and its ablations."""
    for policy in options.policies:
        if policy in RIVALS:
            for order in options.orders:
                yield policy, order
        else:
            yield policy, "ours"
        if policy == "cp_ray":
            for part in options.ablate:
                if part not in ARMS:
                    raise ConfigError(f"--ablate: {part!r} is not one of {', '.join(ARMS)}")
                yield f"cp_ray-{part}", "ours"


def prepare(options: FleetOptions) -> Workload:
    """The workload, without what no replica could hold."""
    workload = read_workload(options.trace, options.requests)
    if options.repeat > 1:
        workload = repeated(workload, options.repeat, options.warm)
    if not options.overlap:
        workload = without_overlap(workload)
    if not options.answers:
        workload = without_answers(workload)
    workload = fitting(workload, options.hardware.cache_tokens)
    if not workload.jobs:
        raise ConfigError(
            "--cache-tokens: no prompt fits into a replica's cache; give it more",
            param="cache_tokens",
        )
    if options.arrivals == "bursty" and not workload.stamps:
        raise ConfigError(f"--arrivals bursty: {workload.name} has no time stamps")
    return workload


def bench_fleet(options: FleetOptions) -> Iterator[FleetRow]:
    """Rows as they come. Raises ConfigError naming the option to mend."""
    cells = list(arms(options))
    workload = prepare(options)
    hardware = options.hardware
    rate = options.saturation_rps
    if options.arrivals != "closed" and rate is None:
        rate = saturation(workload, hardware)
    for load in options.loads:
        for seed in options.seeds:
            for policy, order in cells:
                asked = load if options.arrivals == "closed" else load * (rate or 0.0)
                cell = Cell(hardware, policy, order, options.arrivals, asked, seed)
                yield play_row(workload, cell, load, rate)


def play_row(workload: Workload, cell: Cell, load: float, saturation_rps: float | None) -> FleetRow:
    """Play one cell. load, saturation_rps: what its rate was made of."""
    hardware = cell.hardware
    most, cost = None, ""
    if cell.arrivals == "closed":
        most = chains_ceiling(workload, hardware, round(cell.rate * hardware.replicas))
        cost = _said(workload, hardware)
    out = play(workload, cell)
    return FleetRow(
        workload.name,
        out.requests,
        hardware.replicas,
        hardware.cache_tokens,
        hardware.model,
        cell.arrivals,
        saturation_rps,
        load,
        cell.seed,
        cell.policy,
        cell.order,
        out.hit_ratio,
        out.block_hits,
        out.ttft_mean_s,
        out.ttft_p50_s,
        out.ttft_p99_s,
        out.throughput_tok_s,
        out.chains_per_s,
        out.imbalance,
        out.plan_us,
        most,
        cost,
    )


def _said(workload: Workload, hardware: Hardware) -> str:
    """What a closed loop's chains a second depend on, for the table's first line."""
    jobs = workload.jobs
    chains = sum(job.after is None for job in jobs)
    answer = sum(job.output_tokens for job in jobs) / len(jobs)
    cost = step_cost(hardware) if hardware.model == "batching" else SerialRates()
    return f"{chains:,} chains; {cost}; answers of {answer:.0f} tokens"
