"""Virtual time: what replicas and the event loop do, on cases that can be worked out by hand."""

from __future__ import annotations

import pytest

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import BlockId, RequestId
from cp_ray.replay.fleet.arrivals import bursty, poisson
from cp_ray.replay.fleet.batching import BatchingReplica
from cp_ray.replay.fleet.cell import Cell, Hardware, play
from cp_ray.replay.fleet.clock import SerialRates, StepCost
from cp_ray.replay.fleet.job import Job, Live
from cp_ray.replay.fleet.policies.round_robin import RoundRobin
from cp_ray.replay.fleet.registry import OURS, RIVALS
from cp_ray.replay.fleet.serial import SerialReplica
from cp_ray.replay.fleet.simulation import Replica, Simulation
from cp_ray.replay.fleet.view import FleetView
from cp_ray.replay.fleet.workload import Workload, fitting, repeated, without_overlap
from cp_ray.replay.trace import TraceRequest


def job(name: str, *blocks: str, after: str | None = None, output: int = 3) -> Job:
    context = tuple(BlockId(block) for block in blocks)
    request = TraceRequest(RequestId(name), "", context, (160,) * len(context), 16)
    return Job(request, output, after=RequestId(after) if after else None)


def simulate(replica: Replica, jobs: list[Job], times: list[float]) -> dict[str, Live]:
    simulation = Simulation([replica], RoundRobin(1), FleetView([replica.cache], None))
    simulation.open_loop(jobs, times)
    replica.cache.check()
    return {live.request_id: live for live in simulation.done}


def cache() -> PrefixCache:
    return PrefixCache(4096, 16)


def test_serial_prefills_one_prompt_after_the_other_and_answers_beside_them() -> None:
    replica = SerialReplica(cache(), SerialRates(prefill_tokens_per_s=100, decode_tokens_per_s=10))
    done = simulate(replica, [job("a", "x"), job("b", "x", "y")], [0.0, 0.0])
    assert done["a"].first_s == pytest.approx(1.76)
    assert done["a"].ended_s == pytest.approx(1.76 + 0.2)
    assert done["b"].cached == 160
    assert done["b"].first_s == pytest.approx(1.76 + 1.76)


def test_batching_shares_steps_between_prefill_and_answers() -> None:
    cost = StepCost(fixed_s=0.1, prefill_s=0.001, pair_s=0.0, decode_s=0.01)
    replica = BatchingReplica(cache(), cost, step_tokens=100)
    done = simulate(replica, [job("a", "x")], [0.0])
    # 176 tokens in steps of 100 and 76, then two steps that only answer.
    assert done["a"].first_s == pytest.approx(0.2 + 0.176)
    assert done["a"].ended_s == pytest.approx(0.2 + 0.176 + 2 * 0.11)


def test_a_request_that_comes_while_others_only_answer_starts_at_the_next_step() -> None:
    cost = StepCost(fixed_s=0.1, prefill_s=0.001, pair_s=0.0, decode_s=0.0)
    replica = BatchingReplica(cache(), cost)
    done = simulate(replica, [job("a", "x", output=100), job("b", "y")], [0.0, 1.0])
    begin = 0.276 + 0.1 * 8  # the first end of a step after 1.0
    assert done["b"].first_s == pytest.approx(begin + 0.276)


def test_a_chain_goes_step_by_step() -> None:
    replica = SerialReplica(cache(), SerialRates(prefill_tokens_per_s=100, decode_tokens_per_s=10))
    done = simulate(replica, [job("a", "x"), job("b", "x", after="a")], [0.5])
    assert done["b"].arrived_s == done["a"].ended_s


def test_a_closed_loop_keeps_so_many_clients_busy() -> None:
    replica = SerialReplica(cache(), SerialRates())
    simulation = Simulation([replica], RoundRobin(1), FleetView([replica.cache], None))
    simulation.closed_loop([job(f"q{n}", f"b{n}") for n in range(20)], 3, 0.0)
    spans = [(live.arrived_s, live.ended_s) for live in simulation.done]
    for moment, _ in spans:
        assert sum(begin <= moment < end for begin, end in spans) <= 3
    assert len(spans) == 20


def test_arrivals_have_the_rate_asked_for() -> None:
    assert poisson(4000, 8.0, 1)[-1] == pytest.approx(500, rel=0.05)
    stamps = [0.0, 0.0, 0.0, 3.0, 3.0, 9.0]
    times = bursty(stamps, 300, 10.0, 2)
    assert times[-1] == pytest.approx(29.9, rel=0.01)
    assert times == sorted(times)
    assert len(set(times)) < 200, "bursts stay bursts"


def some_workload(count: int = 60) -> Workload:
    return Workload(
        "made", tuple(job(f"q{n}", f"a{n % 5}", f"b{n % 7}", f"c{n % 3}") for n in range(count))
    )


@pytest.mark.parametrize("policy", [*RIVALS, *OURS, "cp_ray-order", "cp_ray-joint"])
@pytest.mark.parametrize("order", ["none", "paper"])
def test_every_policy_serves_every_request(policy: str, order: str) -> None:
    cell = Cell(Hardware(4, 2048, "batching"), policy, order, "poisson", 40.0, 1)
    out = play(some_workload(), cell)
    assert out.requests == 60
    assert 0.0 <= out.hit_ratio < 1.0
    assert out.ttft_p99_s >= out.ttft_p50_s > 0


def test_without_overlap_nothing_is_found() -> None:
    cell = Cell(Hardware(4, 100_000, "batching"), "cp_ray", "none", "poisson", 40.0, 1)
    assert play(without_overlap(some_workload()), cell).hit_ratio == 0.0


def test_prompts_that_no_replica_could_hold_are_left_out_with_what_follows_them() -> None:
    chain = [job("a", "x"), job("b", *"xyz", after="a"), job("c", "x", after="b")]
    kept = fitting(Workload("made", tuple(chain)), 400).jobs
    assert [one.request.request_id for one in kept] == ["a"]


def test_where_all_was_sent_before_only_the_second_time_counts_and_all_is_found() -> None:
    twice = repeated(some_workload(), 2, warming=1)
    assert (twice.name, len(twice.jobs), twice.warming) == ("made_x2_warm", 120, 60)
    chain = Workload("made", (job("a", "x"), job("b", *"xyz"), job("c", "x")))
    fits = fitting(repeated(chain, 2, warming=1), 400)
    assert (len(fits.jobs), fits.warming) == (4, 2), "what is left out was no warming either"
    assert without_overlap(fits).warming == 2
    for policy in ("est_ttft", "cp_ray"):
        cell = Cell(Hardware(2, 1 << 20, "batching"), policy, "none", "poisson", 5.0, 1)
        out = play(twice, cell)
        assert out.requests == 60
        assert out.hit_ratio > 0.8, "all but a page or so of each prompt"
        assert play(repeated(some_workload(), 2), cell).hit_ratio < out.hit_ratio
