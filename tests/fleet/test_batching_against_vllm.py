"""The batching model against vLLM's own Scheduler, request by request, in virtual time."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("vllm")

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import BlockId, RequestId
from cp_ray.replay.fleet.batching import BatchingReplica
from cp_ray.replay.fleet.clock import StepCost
from cp_ray.replay.fleet.job import Job
from cp_ray.replay.fleet.policies.round_robin import RoundRobin
from cp_ray.replay.fleet.simulation import Simulation
from cp_ray.replay.fleet.view import FleetView
from cp_ray.replay.trace import TraceRequest
from tests.fleet.vllm_scheduler import Asked, Seen, run_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PAGE = 16
COST = StepCost(fixed_s=0.01, prefill_s=1e-4, pair_s=2.5e-9, decode_s=0.0004)


def workload(count: int, gap_s: float, seed: int) -> tuple[list[Asked], list[Job], list[float]]:
    """The same requests twice: as tokens, and as blocks of so many."""
    chance = random.Random(seed)
    sizes = [chance.randrange(5, 60) * PAGE for _ in range(12)]
    texts = [[chance.randrange(40_000) for _ in range(size)] for size in sizes]
    asked, jobs, times = [], [], []
    now = 0.0
    for number in range(count):
        now += chance.expovariate(1 / gap_s)
        docs = chance.sample(range(12), chance.randrange(1, 5))
        question = [50_000 - number] * chance.randrange(1, 50)
        output = chance.choice((1, 2, 8, 30))
        name = f"q{number}"
        prompt = [token for doc in docs for token in texts[doc]] + question
        asked.append(Asked(name, now, tuple(prompt), output))
        request = TraceRequest(
            RequestId(name),
            "",
            tuple(BlockId(str(doc)) for doc in docs),
            tuple(sizes[doc] for doc in docs),
            len(question),
        )
        jobs.append(Job(request, output))
        times.append(now)
    return asked, jobs, times


def run_ours(jobs: list[Job], times: list[float], pages: int, step_tokens: int) -> dict[str, Seen]:
    cache = PrefixCache(pages * PAGE, PAGE, duplicates=True)
    replica = BatchingReplica(cache, COST, step_tokens=step_tokens)
    simulation = Simulation([replica], RoundRobin(1), FleetView([cache], pages * PAGE))
    simulation.open_loop(jobs, times)
    cache.check()
    return {one.request_id: Seen(one.cached, one.first_s, one.ended_s) for one in simulation.done}


@pytest.mark.parametrize("step_tokens", [512, 2048])
def test_with_room_every_request_is_served_at_the_same_time(step_tokens: int) -> None:
    asked, jobs, times = workload(150, 0.06, seed=step_tokens)
    theirs = run_vllm(asked, page=PAGE, pages=8000, step_tokens=step_tokens, cost=COST)
    ours = run_ours(jobs, times, 8000, step_tokens)
    assert sum(one.cached for one in theirs.values()) > 20_000, "there is something to find"
    for name, seen in theirs.items():
        assert ours[name].cached == seen.cached, name
        assert ours[name].first_s == pytest.approx(seen.first_s, abs=1e-6), name
        assert ours[name].ended_s == pytest.approx(seen.ended_s, abs=1e-6), name


def test_with_evictions_times_to_first_token_agree_within_two_percent() -> None:
    """vLLM keeps pages of answers, too, so a tight cache does not lose quite the same pages."""
    asked, jobs, times = workload(200, 0.08, seed=3)
    theirs = run_vllm(asked, page=PAGE, pages=400, step_tokens=2048, cost=COST)
    ours = run_ours(jobs, times, 400, 2048)
    mean_of = [
        sum(seen[one.name].first_s - one.at_s for one in asked) / len(asked)
        for seen in (ours, theirs)
    ]
    assert mean_of[0] == pytest.approx(mean_of[1], rel=0.02)
