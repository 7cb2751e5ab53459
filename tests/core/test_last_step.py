"""Whom a prompt delays that fills up a step (docs/decisions/0030)."""

from __future__ import annotations

import pytest

from cp_ray.core.fleet_load import FleetLoad
from cp_ray.core.joint import Prompt, lay_out
from cp_ray.core.last_step import ALONE, LastStep
from cp_ray.core.own_times import Alone, OwnTimes
from cp_ray.core.placement import FIRST_CLAIM, PRICE_FLOOR, Option, choose
from cp_ray.core.prefill_curve import PrefillCurve
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import BlockId, HeadId, ReplicaId, ReplicaInfo, RequestId
from cp_ray.replay.fleet.batching import BatchingReplica
from cp_ray.replay.fleet.clock import StepCost
from cp_ray.replay.fleet.job import Job, Live
from cp_ray.replay.trace import TraceRequest

STEP = 8192
RATE = 1e-4
"""Seconds a token, as everybody estimates before the first fit."""


def line(*prompts: int) -> LastStep:
    last = LastStep(STEP)
    for new in prompts:
        last = last.joined(new)
    return last


def first_tokens(*prompts: tuple[float, int]) -> list[float]:
    """When prompts that come then, of so many tokens, get their first token from one engine."""
    replica = BatchingReplica(PrefixCache(1 << 20, 16), StepCost(0.0, RATE, 0.0, 0.0))
    lives: list[Live] = []
    coming = list(prompts)
    while coming or replica.next_s < float("inf"):
        if coming and coming[0][0] < replica.next_s:
            now, tokens = coming.pop(0)
            request = TraceRequest(RequestId(f"q{len(lives)}"), "c", (), (), tokens)
            lives.append(Live(Job(request, 1), now, None))
            replica.submit(lives[-1], now)
        else:
            replica.advance()
    return [live.first_s for live in lives]


@pytest.mark.parametrize("new", [1000, 4000, 9000])
@pytest.mark.parametrize("ahead", [(20_000,), (9000, 9000), (8192, 1000, 2000), (16_384,)])
def test_those_ahead_are_as_late_as_the_engine_makes_them(ahead: tuple[int, ...], new: int) -> None:
    alone = first_tokens(*((0.0, tokens) for tokens in ahead))
    joined = first_tokens(*((0.0, tokens) for tokens in ahead), (0.1, new))
    late_s = sum(joined[:-1]) - sum(alone)
    assert line(*ahead).late_share(new) * new * RATE == pytest.approx(late_s)


def test_an_engine_that_prefills_one_prompt_at_a_time_delays_nobody_ahead() -> None:
    assert ALONE.joined(20_000).joined(300).late_share(1000) == 0.0
    assert offers(0, at=0.1)[0].late_s == 0.0


def offers(step_tokens: int, *, at: float) -> list[Option]:
    """For 12,000 tokens, of which the first replica, that prefills 20,000 since 0, has 8,000."""
    load = FleetLoad()
    infos = [ReplicaInfo(ReplicaId(name), 16, 1 << 20, step_tokens) for name in "ab"]
    offer = load.options(infos[:1], [0], 20_000, 0.0)[0]
    load.reserve(RequestId("ahead"), offer, 0, 20_000, now=0.0, replicas=2)
    return load.options(infos, [8000, 0], 12_000, at)


def test_a_step_that_has_begun_is_joined_by_nobody() -> None:
    """20,000 tokens are two whole steps, and one of 3,616 that begins 0.36 s before the end."""
    late_s = 4000 * RATE
    assert [offer.late_s for offer in offers(STEP, at=1.5)] == pytest.approx([late_s, 0.0])
    assert [offer.late_s for offer in offers(STEP, at=1.7)] == [0.0, 0.0]


def test_a_sibling_does_not_fill_up_the_step_that_the_one_ahead_waits_for() -> None:
    """The holder saves 0.8 s of its prefill; it waits there, and the other one gets late."""
    for step_tokens, chosen in ((0, "a"), (STEP, "b")):
        found = offers(step_tokens, at=1.3)
        assert choose(found, PRICE_FLOOR, found[1].own_s).replica == chosen, step_tokens


def test_what_is_planned_in_a_window_counts_as_ahead_too() -> None:
    """Two prompts of half a step each: one after the other on a replica, or one on each."""
    prompts = [
        Prompt(
            HeadId(f"h{n}"),
            0,
            {BlockId(f"b{n}"): 4000},
            4000,
            fixed=False,
            prefix=[(), ()],
            held=[0, 0],
        )
        for n in range(8)
    ]

    own = OwnTimes(Alone(PrefillCurve(0.4, 0.0, 0.0, 0.0)), [0.0, 0.0], [1.0, 1.0])

    def placed(steps: list[LastStep] | None, count: int) -> list[int]:
        window = prompts[:count]
        places = lay_out(window, [0.0, 0.5], own, lambda _: 1.0, steps=steps)
        return [place.replica for place in places]

    assert placed(None, 2) == [0, 0]
    assert sorted(placed([LastStep(STEP), LastStep(STEP)], 2)) == [0, 1], "mended"
    assert placed([ALONE, ALONE], 8) == placed(None, 8)
    for count in (1, 7):  # mended, and too large for it
        assert 0 not in placed([LastStep(STEP, 0, ends=50), LastStep(STEP)], count), count
    assert FIRST_CLAIM >= 1.0
