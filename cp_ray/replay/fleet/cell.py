"""One cell of the table: a workload through a fleet at one load, by one policy, with one seed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.replay.fleet.arrivals import bursty, poisson
from cp_ray.replay.fleet.batching import STEP_TOKENS, BatchingReplica
from cp_ray.replay.fleet.clock import SerialRates, StepCost
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.registry import Fleet, make_router
from cp_ray.replay.fleet.router import Router
from cp_ray.replay.fleet.serial import SerialReplica
from cp_ray.replay.fleet.simulation import Replica, Simulation
from cp_ray.replay.fleet.view import FleetView
from cp_ray.replay.fleet.workload import Workload

PAGE = 16

Model = Literal["serial", "batching"]
Arrivals = Literal["poisson", "bursty", "closed"]


class Hardware(msgspec.Struct, frozen=True):
    """The fleet. cache_tokens: of each replica. decode_s: of model `batching`, as in `StepCost`."""

    replicas: int
    cache_tokens: int
    model: Model
    decode_s: float = StepCost().decode_s


class Cell(msgspec.Struct, frozen=True):
    """rate: requests a second, or clients per replica where arrivals are `closed`."""

    hardware: Hardware
    policy: str
    order: str
    arrivals: Arrivals
    rate: float
    seed: int


class Outcome(msgspec.Struct, frozen=True):
    """What came of a cell. Times in seconds.

    block_hits: tokens of blocks found cached, over those sent; hit_ratio is of whole prompts.
    throughput: prompt tokens a second whose first token came while requests still arrived (closed
    loop: until the last ended). imbalance: prefilled tokens of the busiest replica over the mean.
    served_per_s: requests over the whole run; chains_per_s: of those that wait for no other.
    late: TTFT of the last quarter of arrivals over that of the second.
    """

    requests: int
    hit_ratio: float
    block_hits: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    throughput_tok_s: float
    imbalance: float
    served_per_s: float
    chains_per_s: float
    late: float
    plan_us: float


def play(workload: Workload, cell: Cell, router: Router | None = None) -> Outcome:
    """Run the cell. router: a fresh one, in place of the one that the cell names."""
    hardware = cell.hardware
    caches = [
        PrefixCache(hardware.cache_tokens, PAGE, record_limit=1 << 20)
        for _ in range(hardware.replicas)
    ]
    cost = step_cost(hardware)
    replicas = [new_replica(hardware.model, cache, cost) for cache in caches]
    router = router or make_router(cell.policy, cell.order, fleet_of(hardware, cell.seed))
    view = FleetView(caches, hardware.cache_tokens)
    simulation = Simulation(replicas, router, view, time.perf_counter)
    jobs = workload.jobs
    chains = sum(job.after is None for job in jobs)
    if cell.arrivals == "closed":
        simulation.closed_loop(jobs, round(cell.rate * hardware.replicas), 0.02)
    else:
        rate = cell.rate * chains / len(jobs)
        if cell.arrivals == "poisson":
            times = poisson(chains, rate, cell.seed)
        else:
            times = bursty(workload.stamps, chains, rate, cell.seed)
        simulation.open_loop(jobs, times)
    done = sorted(simulation.done, key=lambda live: live.arrived_s)[workload.warming :]
    return _outcome(done, hardware.replicas, cell.arrivals == "closed", simulation.route_s)


def fleet_of(hardware: Hardware, seed: int) -> Fleet:
    """What a policy is told."""
    return Fleet(hardware.replicas, PAGE, hardware.cache_tokens, seed, step_tokens(hardware.model))


def step_cost(hardware: Hardware) -> StepCost:
    """Of model `batching`."""
    return StepCost(decode_s=hardware.decode_s)


def step_tokens(model: Model) -> int:
    """As `core.types.ReplicaInfo` has them."""
    return STEP_TOKENS if model == "batching" else 0


def new_replica(model: Model, cache: PrefixCache, cost: StepCost | None = None) -> Replica:
    """An idle one. cost: of model `batching`."""
    if model == "serial":
        return SerialReplica(cache, SerialRates())
    return BatchingReplica(cache, cost or StepCost())


def _outcome(done: Sequence[Live], replicas: int, closed: bool, route_s: float) -> Outcome:
    """done: by arrival."""
    ttft = [live.first_s - live.arrived_s for live in done]
    ranked = sorted(ttft)
    count = len(ranked)
    chains = sum(live.job.after is None for live in done)
    sent, found = (sum(of) for of in zip(*(live.block_tokens() for live in done), strict=True))
    prompts = sum(live.prompt_tokens for live in done)
    end_s = max(live.ended_s for live in done) if closed else done[-1].arrived_s
    served = sum(live.prompt_tokens for live in done if live.first_s <= end_s)
    prefilled = [0] * replicas
    for live in done:
        prefilled[live.replica] += live.prompt_tokens - live.cached
    quarter = count // 4
    second = sum(ttft[quarter : 2 * quarter])
    return Outcome(
        requests=count,
        hit_ratio=sum(live.cached for live in done) / prompts,
        block_hits=found / max(sent, 1),
        ttft_mean_s=sum(ttft) / count,
        ttft_p50_s=ranked[count // 2],
        ttft_p99_s=ranked[count * 99 // 100],
        throughput_tok_s=served / end_s if end_s > 0 else 0.0,
        imbalance=max(prefilled) * replicas / max(sum(prefilled), 1),
        served_per_s=count / max(live.ended_s for live in done),
        chains_per_s=chains / max(live.ended_s for live in done),
        late=sum(ttft[-quarter:]) / second if second else 1.0,
        plan_us=route_s / count * 1e6,
    )
