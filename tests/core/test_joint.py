"""Joint choice of order, replica and sequence against everything that could be chosen."""

from __future__ import annotations

import random

from cp_ray.core.index import ContextIndex
from cp_ray.core.joint import Prompt, lay_out
from cp_ray.core.own_times import Alone, OwnTimes
from cp_ray.core.prefill_curve import PrefillCurve
from cp_ray.core.types import (
    BlockId,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
)
from tests.core.brute_force import Held, least_total, prefixes, total_of

REPLICAS = [ReplicaId(f"r{at}") for at in range(3)]
CASES = 12


def some_request(chance: random.Random, name: str, sizes: dict[BlockId, int]) -> PlanRequest:
    context = tuple(chance.sample(sorted(sizes), chance.choice((2, 2, 3))))
    return PlanRequest(
        RequestId(name),
        HeadId("h"),
        0,
        context,
        tuple(sizes[block] for block in context),
        chance.randrange(20, 200),
    )


def case(seed: int) -> tuple[ContextIndex, list[PlanRequest], list[Held]]:
    """A warm index of three replicas, a window of five requests over six blocks, what is held."""
    chance = random.Random(seed)
    sizes = {BlockId(str(n)): chance.randrange(200, 1500) for n in range(6)}
    index = ContextIndex()
    index.set_replicas([ReplicaInfo(name, 1, 1 << 30) for name in REPLICAS])
    held: list[Held] = [frozenset()] * len(REPLICAS)
    for number in range(chance.randrange(0, 4)):
        (step,) = index.plan([some_request(chance, f"before{number}", sizes)], float(number))
        index.hear(FirstToken(step.request_id), number + 0.5)
        index.hear(Settled(step.request_id, step.reused_tokens, ok=True), number + 0.5)
        held[REPLICAS.index(step.replica or REPLICAS[0])] |= prefixes(step.context)
    return index, [some_request(chance, f"q{n}", sizes) for n in range(5)], held


def regret(seed: int) -> float:
    index, window, held = case(seed)
    asked = {request.request_id: request for request in window}
    steps = index.plan(window, 1000.0)
    index.check()
    planned = total_of(
        [
            (asked[step.request_id], step.context, REPLICAS.index(step.replica or REPLICAS[0]))
            for step in steps
        ],
        held,
    )
    return planned / least_total(window, held) - 1.0


def test_a_window_is_planned_within_five_percent_of_the_best_on_average() -> None:
    regrets = [regret(seed) for seed in range(CASES)]
    assert all(one > -1e-9 for one in regrets), "nothing beats trying everything"
    assert sum(regrets) / CASES <= 0.05


def test_a_window_keeps_away_from_where_many_wait() -> None:
    """The wait of the second replica is a little longer, but it keeps fewer others waiting."""
    prompts = [
        Prompt(
            HeadId("h"), 0, {BlockId(f"b{n}"): 900}, 900, fixed=False, prefix=[(), ()], held=[0, 0]
        )
        for n in range(8)
    ]

    own = OwnTimes(Alone(PrefillCurve(1.0, 0.0, 0.0, 0.0)), [0.0, 0.0], [1.0, 1.0])

    def placed(surcharge: list[float] | None, count: int) -> list[int]:
        window = prompts[:count]
        places = lay_out(window, [1.0, 1.4], own, lambda _: 1.0, surcharge=surcharge)
        return [place.replica for place in places]

    for count in (1, 4, 8):  # mended, and too large for it
        assert placed([2.0, 0.0], count).count(0) < placed(None, count).count(0), count
