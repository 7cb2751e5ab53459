"""Where reuse was lost adds up, on every trace that `bench fleet` plays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.fleet_grid import TRACES
from cp_ray.core.loss import CAUSES
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.replay.fleet.arrivals import poisson
from cp_ray.replay.fleet.bench import FleetOptions, prepare
from cp_ray.replay.fleet.cell import PAGE, Hardware, new_replica
from cp_ray.replay.fleet.policies.cp_ray import CpRay
from cp_ray.replay.fleet.simulation import Simulation
from cp_ray.replay.fleet.view import FleetView

DATA = Path(os.environ.get("CP_RAY_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
REPLICAS, CAPACITY, REQUESTS = 4, 100_000, 300


@pytest.mark.parametrize("trace", [name for name, _ in TRACES])
def test_causes_add_up_to_what_was_computed_and_nothing_is_unexplained(trace: str) -> None:
    if not (DATA / trace).exists():
        pytest.skip(f"{trace} is not among the public traces here (CP_RAY_DATA)")
    hardware = Hardware(REPLICAS, CAPACITY, "batching")
    jobs = prepare(FleetOptions(DATA / trace, hardware, requests=REQUESTS)).jobs
    caches = [PrefixCache(CAPACITY, PAGE) for _ in range(REPLICAS)]
    router = CpRay(REPLICAS, PAGE, CAPACITY)
    replicas = [new_replica("batching", cache) for cache in caches]
    simulation = Simulation(replicas, router, FleetView(caches, CAPACITY))
    chains = sum(job.after is None for job in jobs)
    simulation.open_loop(jobs, poisson(chains, 5.0 * chains / len(jobs), 1))

    sums = router.index.losses.sums()
    prompts = sum(live.prompt_tokens for live in simulation.done)
    cached = sum(live.cached for live in simulation.done)
    assert (sums.requests, sums.prompt_tokens, sums.cached_tokens) == (len(jobs), prompts, cached)
    assert tuple(sums.by_cause) == CAUSES
    assert sum(sums.by_cause.values()) == prompts - cached
    assert sums.unexplained_share() <= 0.01
    assert sums.by_cause["cold"] > 0
