"""What is learnt of prefill times while serving."""

from __future__ import annotations

import random

import pytest

from cp_ray.core.estimated_ttft import PRIOR, PrefillTimes
from cp_ray.core.types import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


def true_s(cached: int, new: int) -> float:
    return 0.012 + new * (8e-5 + 2.5e-9 * (cached + new / 2))


def feed(
    times: PrefillTimes, count: int, slow: dict[ReplicaId, float], noise: float = 0.0, seed: int = 1
) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        for replica, factor in slow.items():
            cached, new = chance.randrange(0, 20_000), chance.randrange(200, 15_000)
            seconds = true_s(cached, new) * factor * chance.lognormvariate(0, noise)
            times.observe(replica, cached, new, seconds, idle=chance.random() < 0.5)
            times.check()


def test_until_it_has_seen_enough_the_prior_holds() -> None:
    times = PrefillTimes()
    assert not times.fitted
    assert times.seconds(A, 0, 1000) == PRIOR.seconds(0, 1000)


def test_the_curve_is_found_from_noisy_runs_of_first_tokens() -> None:
    times = PrefillTimes()
    feed(times, 300, {A: 1.0}, noise=0.1)
    for cached, new, error in ((0, 1000, 0.15), (0, 12_000, 0.05), (15_000, 3000, 0.05)):
        assert abs(times.seconds(A, cached, new) / true_s(cached, new) - 1) < error


def test_a_replica_twice_as_slow_is_known_within_a_hundred_requests() -> None:
    times = PrefillTimes()
    feed(times, 50, {A: 1.0, B: 2.0}, noise=0.05)
    ratio = times.seconds(B, 0, 8000) / times.seconds(A, 0, 8000)
    assert 1.85 < ratio < 2.15


def test_a_replica_that_becomes_slow_is_followed() -> None:
    times = PrefillTimes()
    feed(times, 100, {A: 1.0, B: 1.0})
    feed(times, 50, {A: 1.0, B: 2.0}, seed=2)
    assert times.seconds(B, 0, 8000) / times.seconds(A, 0, 8000) > 1.8


def test_prompts_that_end_in_one_step_do_not_look_free() -> None:
    """Most of the second was computed beside the first: alone it would seem to take no time."""
    times = PrefillTimes()
    for _ in range(40):
        times.observe(A, 0, 4000, true_s(0, 4000) + true_s(0, 3900), idle=False)
        times.observe(A, 0, 4000, 0.01, idle=True)
    assert abs(times.seconds(A, 0, 4000) / true_s(0, 4000) - 1) < 0.1


def test_traffic_without_cached_tokens_says_nothing_absurd_of_cached_ones() -> None:
    times = PrefillTimes()
    chance = random.Random(3)
    for _ in range(100):
        new = chance.randrange(200, 15_000)
        cached = chance.choice((0, 16))
        seconds = true_s(cached, new) * (1.1 if cached else 1.0)
        times.observe(A, cached, new, seconds, idle=True)
    assert times.seconds(A, 10_000, 2000) < 2 * true_s(10_000, 2000)


def test_prompts_that_all_lack_as_much_do_not_make_tokens_free() -> None:
    times = PrefillTimes()
    for cached in range(0, 52_000, 520):
        times.observe(A, cached, 520, 0.01 + 520e-4, idle=True)
    assert times.fitted
    assert times.seconds(A, 0, 5200) > 5 * times.seconds(A, 4680, 520)


def test_answers_and_pairs_that_explain_all_do_not_make_tokens_free() -> None:
    times = PrefillTimes()
    for number in range(40):
        answering, cached = 50 + number * 7 % 60, number * 1300 % 20_000
        seconds = 0.004 * answering + 2e-8 * 5000 * (cached + 2500)
        times.observe(A, cached, 5000, seconds, answering=answering, idle=True)
    assert times.fitted
    assert times.seconds(A, 0, 100) > 0.01 * times.seconds(A, 0, 5000)


def test_waits_for_room_are_not_taken_for_slow_prefill() -> None:
    times = PrefillTimes()
    feed(times, 60, {A: 1.0})
    for _ in range(20):
        times.observe(A, 0, 4000, 30.0, idle=False)
        times.skip(A, 30.0, idle=False)
    feed(times, 60, {A: 1.0})
    assert abs(times.seconds(A, 0, 4000) / true_s(0, 4000) - 1) < 0.05


@pytest.mark.parametrize("waited_for_room", [False, True])
@pytest.mark.parametrize("gap_s", [0.0, 2e-5, 2e-4, 1e-3])
def test_a_step_heard_in_several_messages_does_not_make_prefill_free(
    gap_s: float, waited_for_room: bool
) -> None:
    """Eight prompts of one step, of which six fill a run: the last two take no time."""
    times = PrefillTimes()
    for round_ in range(40):
        feed(times, 5, {A: 1.0}, seed=round_)
        times.observe(A, 0, 500, true_s(0, 500), idle=True)
        lengths = [200 + 150 * n for n in range(8)]
        for n, new in enumerate(lengths):
            gap = gap_s if n else sum(true_s(0, length) for length in lengths)
            if waited_for_room and n == 0:
                times.skip(A, 5 * gap, idle=False)
            else:
                times.observe(A, 0, new, gap, idle=n == 7)
    for cached, new in ((0, 2000), (10_000, 5000)):
        assert abs(times.seconds(A, cached, new) / true_s(cached, new) - 1) < 0.15


def test_runs_far_too_fast_are_not_believed() -> None:
    """Whatever made them; until they are what is usual."""
    times = PrefillTimes()
    feed(times, 100, {A: 1.0})
    for _ in range(10):
        times.observe(A, 0, 4000, 1e-3, idle=True)
    feed(times, 100, {A: 1.0}, seed=2)
    assert abs(times.curve.seconds(0, 4000) / true_s(0, 4000) - 1) < 0.05
    feed(times, 1000, {A: 1 / 40}, seed=3)
    assert times.seconds(A, 0, 4000) < true_s(0, 4000) / 20


@pytest.mark.parametrize("seed", range(4))
def test_among_hits_that_all_lack_as_little_a_cold_prompt_costs_what_it_costs(seed: int) -> None:
    """Four in five find all but their question. By them alone a token would cost milliseconds."""
    times = PrefillTimes()
    chance = random.Random(seed)
    for _ in range(300):
        hit = chance.random() < 0.8
        cached, new = (8000, 16) if hit else (0, chance.randrange(4000, 12_000))
        seconds = (0.025 + new / 40_000) * chance.lognormvariate(0, 0.2)
        times.observe(A, cached, new, seconds, idle=True)
    assert 0.8 < times.seconds(A, 0, 8000) / 0.225 < 1.25


def test_answers_beside_a_prompt_cost_what_they_cost() -> None:
    times = PrefillTimes()
    chance = random.Random(4)
    for _ in range(200):
        new, answering = chance.randrange(100, 3000), chance.randrange(0, 40)
        seconds = true_s(0, new) + 0.0004 * answering
        times.observe(A, 0, new, seconds, answering=answering, idle=True)
    extra = times.seconds(A, 0, 1000, 30) - times.seconds(A, 0, 1000, 0)
    assert 0.010 < extra < 0.014


def test_nine_in_ten_stay_below_the_p90() -> None:
    times = PrefillTimes()
    chance = random.Random(5)
    covered = 0
    for number in range(2000):
        estimate = chance.uniform(0.1, 3.0)
        within = times.judge(estimate, estimate * chance.lognormvariate(0.1, 0.4))
        covered += within and number >= 500
    assert 0.87 < covered / 1500 < 0.93
    assert times.p90_s(1.0) > 1.5


def test_a_forgotten_replica_is_as_fast_as_the_fleet() -> None:
    times = PrefillTimes()
    feed(times, 50, {A: 1.0, B: 2.0})
    times.forget(B)
    assert times.slowness(B) == 1.0
