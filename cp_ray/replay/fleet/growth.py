"""`bench fleet --grow-from N`: a fleet that grows mid-trace, with and without pre-warming.

How soon are the replicas that join worth as much as those of a fleet that was as large all along?
The prompts that warm them take their turn in the engine as any others, and are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.errors import ConfigError
from cp_ray.replay.fleet.arrivals import poisson
from cp_ray.replay.fleet.bench import FleetOptions, prepare
from cp_ray.replay.fleet.cell import PAGE, new_replica, step_cost, step_tokens
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.policies.warming import Growing
from cp_ray.replay.fleet.saturation import saturation
from cp_ray.replay.fleet.simulation import Simulation
from cp_ray.replay.fleet.view import FleetView
from cp_ray.replay.fleet.workload import Workload

JOIN_AT = 0.4
"""Share of the requests that come before the fleet grows."""
WINDOW_S = 20.0
"""The hit ratio at a time is that of so many seconds before it, since the fleet grew."""
ENOUGH = 0.9
LEAST = 10
"""Requests in such a window; fewer say nothing."""

Start = Literal["large", "cold", "warm"]


class GrowthRow(msgspec.Struct, frozen=True):
    """One run. start: `large` has all replicas from the beginning; the others grow.

    From `seconds` on all is of what came after the fleet grew. steady: hit ratio that the joining
    replicas have in `large`. to_steady_s: until theirs is ENOUGH of it; None = never, in `seconds`.
    charged_s: the same with pre-warming's prefill counted as prompts that missed. prefilled:
    tokens, without `warmed`, which only pre-warming prefilled.
    """

    trace: str
    replicas: int
    grow_from: int
    cache_tokens: int
    model: str
    rate: float
    seed: int
    start: Start
    seconds: float
    steady: float
    to_steady_s: float | None
    charged_s: float | None
    hit_ratio: float
    ttft_mean_s: float
    ttft_p99_s: float
    prefilled: int
    warmed: int


def bench_growth(options: FleetOptions, grow_from: int) -> Iterator[GrowthRow]:
    """Three runs for each load and seed. Raises ConfigError naming the option to mend."""
    hardware = options.hardware
    if not 0 < grow_from < hardware.replicas:
        raise ConfigError(
            f"--grow-from: {grow_from} is not between 1 and --replicas less one",
            param="grow_from",
        )
    if options.arrivals != "poisson":
        raise ConfigError("--grow-from: arrivals are poisson there", param="arrivals")
    workload = prepare(options)
    full = options.saturation_rps or saturation(workload, hardware)
    for load in options.loads:
        for seed in options.seeds:
            steady = 0.0
            starts: tuple[Start, ...] = ("large", "cold", "warm")
            for start in starts:
                run = _Run(
                    options,
                    workload,
                    grow_from=grow_from,
                    rate=load * full,
                    seed=seed,
                    start=start,
                )
                if start == "large":
                    steady = hit_ratio(run.joining())
                yield run.row(steady)


class _Run:
    def __init__(
        self,
        options: FleetOptions,
        workload: Workload,
        *,
        grow_from: int,
        rate: float,
        seed: int,
        start: Start,
    ) -> None:
        hardware = options.hardware
        count, capacity = hardware.replicas, hardware.cache_tokens
        caches = [PrefixCache(capacity, PAGE, record_limit=1 << 20) for _ in range(count)]
        cost = step_cost(hardware)
        replicas = [new_replica(hardware.model, cache, cost) for cache in caches]
        router = Growing(
            count,
            PAGE,
            capacity,
            step_tokens(hardware.model),
            first=count if start == "large" else grow_from,
            warm=start == "warm",
        )
        simulation = Simulation(replicas, router, FleetView(caches, capacity))
        chains = sum(job.after is None for job in workload.jobs)
        times = poisson(chains, rate * chains / len(workload.jobs), seed)
        self.grew_s = times[int(chains * JOIN_AT)]
        simulation.at(self.grew_s, router.join)
        simulation.spare = router.spare
        simulation.open_loop(workload.jobs, times)
        self._last_s = times[-1]
        self._hardware = hardware
        self._facts = (workload.name, count, grow_from, capacity, hardware.model, rate, seed, start)
        self._grow_from = grow_from
        self.after = [live for live in simulation.done if live.arrived_s >= self.grew_s]
        self.warmed = simulation.warmed

    def joining(self) -> list[Live]:
        """Clients' requests on the replicas that join, since they do."""
        return [live for live in self.after if live.replica >= self._grow_from]

    def row(self, steady: float) -> GrowthRow:
        """What came of the run."""
        joining = self.joining()
        ttft = sorted(live.first_s - live.arrived_s for live in self.after)
        return GrowthRow(
            *self._facts,
            seconds=self._last_s - self.grew_s,
            steady=steady,
            to_steady_s=time_to(joining, [], self.grew_s, ENOUGH * steady),
            charged_s=time_to(joining, self.warmed, self.grew_s, ENOUGH * steady),
            hit_ratio=hit_ratio(self.after),
            ttft_mean_s=sum(ttft) / len(ttft),
            ttft_p99_s=ttft[len(ttft) * 99 // 100],
            prefilled=sum(_missed(live) for live in self.after),
            warmed=sum(_missed(live) for live in self.warmed),
        )


def hit_ratio(lives: Sequence[Live], charged: Sequence[Live] = ()) -> float:
    """Cached tokens over prompt tokens. charged: of these the prefilled tokens are added below."""
    prompts = sum(live.prompt_tokens for live in lives) + sum(_missed(live) for live in charged)
    return sum(live.cached for live in lives) / prompts if prompts else 0.0


def time_to(
    lives: Sequence[Live], charged: Sequence[Live], since_s: float, ratio: float
) -> float | None:
    """Seconds since `since_s` until the hit ratio of the last WINDOW_S reaches `ratio`.

    Looked at whenever a first token comes, once there are LEAST requests.
    """
    ended = sorted(lives, key=lambda live: live.first_s)
    for live in ended:
        now = live.first_s
        begin = max(since_s, now - WINDOW_S)
        window = [one for one in ended if begin < one.first_s <= now]
        warm = [one for one in charged if begin < one.first_s <= now]
        if len(window) >= LEAST and hit_ratio(window, warm) >= ratio:
            return now - since_s
    return None


def _missed(live: Live) -> int:
    return live.prompt_tokens - live.cached
