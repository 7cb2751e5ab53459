"""How many replicas: bounds, targets, and no fleet that breathes under a constant load."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cp_ray.core.autoscale import MOST_BUSY, MOST_GROWTH, Demand, Fleet, Goal, decide, needed

SECONDS = st.floats(0.0, 1000.0)
GOALS = st.builds(
    lambda target, least, more, slots: Goal(target, least, least + more, slots),
    st.floats(0.05, 20.0),
    st.integers(1, 8),
    st.integers(0, 60),
    st.integers(1, 64),
)
DEMANDS = st.builds(Demand, SECONDS, st.floats(0.0, 60.0), SECONDS, SECONDS, SECONDS)
OPEN = 10_000
"""Places enough that they never matter."""


class World(msgspec.Struct, frozen=True):
    """A constant load, and how long it waits on so many replicas: `bunched` times M/M/1."""

    per_s: float
    prefill_s: float
    bunched: float

    @property
    def load(self) -> float:
        return self.per_s * self.prefill_s

    def wait_s(self, replicas: int) -> float:
        busy = self.load / replicas
        return self.bunched * self.prefill_s * busy / (1 - busy) if busy < 1 else 1000.0

    def demand(self, replicas: int, noise: float = 1.0) -> Demand:
        """What is measured there; more than a replica can do is not taken."""
        taken = min(self.per_s, replicas / self.prefill_s)
        return Demand(taken, self.prefill_s, self.prefill_s + noise * self.wait_s(replicas))


WORLDS = st.builds(World, st.floats(0.1, 50.0), st.floats(0.02, 2.0), st.floats(0.3, 3.0)).filter(
    lambda world: world.load < 100
)
ROOMY = st.floats(0.1, 10.0).map(lambda target: Goal(target, 1, 500, OPEN))


def walk(world: World, goal: Goal, begin: int) -> list[int]:
    sizes = [begin]
    for _ in range(40):
        sizes.append(needed(world.demand(sizes[-1]), sizes[-1], goal))
    return sizes


@given(DEMANDS, GOALS, st.integers(1, 100), st.integers(0, 100), st.floats(0, 100))
def test_every_answer_is_allowed(
    demand: Demand, goal: Goal, running: int, target: int, now: float
) -> None:
    assert goal.least <= needed(demand, running, goal) <= goal.most
    fleet = Fleet(running, target, 0.0)
    assert goal.least <= decide(demand, fleet, goal, now, 30.0) <= goal.most


@given(DEMANDS, GOALS, st.integers(1, 100), st.floats(0.0, 100.0))
def test_a_longer_wait_never_asks_for_fewer_replicas(
    demand: Demand, goal: Goal, replicas: int, more: float
) -> None:
    slower = msgspec.structs.replace(demand, ttft_s=demand.ttft_s + more)
    assert needed(slower, replicas, goal) >= needed(demand, replicas, goal)


@given(WORLDS, ROOMY)
def test_a_wait_above_the_target_asks_for_more_and_at_most_for_twice_as_many(
    world: World, goal: Goal
) -> None:
    replicas = math.ceil(world.load) + 1
    demand = world.demand(replicas)
    assume(demand.ttft_s > max(goal.target_ttft_s, 2 * world.prefill_s) + 1e-6)
    assert replicas < needed(demand, replicas, goal) <= MOST_GROWTH * replicas


@given(WORLDS, ROOMY, st.integers(1, 400))
def test_a_constant_load_finds_its_size_and_keeps_it(world: World, goal: Goal, begin: int) -> None:
    sizes = walk(world, goal, begin)
    end = sizes[-1]
    assert sizes[-2] == end, sizes
    turns = [b - a for a, b in pairwise(sizes) if b != a]
    changes = sum((a > 0) != (b > 0) for a, b in pairwise(turns))
    assert changes <= 1, "once over the goal while a flood is measured, then down; never again"
    budget = max(goal.target_ttft_s - world.prefill_s, world.prefill_s)
    assert world.wait_s(end) <= budget * 1.0001, "it keeps the target"
    if end > 1 and changes == 0 and begin > end:
        assert world.wait_s(end - 1) > budget * 0.4999, "and no replica too many"


@given(WORLDS, ROOMY, st.lists(st.floats(0.75, 1.33), min_size=30, max_size=30))
@example(World(25.0, 1.0, 0.625), Goal(9.0, 1, 500, OPEN), [*[1.0] * 28, 1.25, 0.75])
def test_a_noisy_but_constant_load_never_makes_the_fleet_breathe(
    world: World, goal: Goal, noise: list[float]
) -> None:
    """Where all replicas were nearly always busy it may grow too far, and give that back."""
    size = walk(world, goal, 1)[-1]
    measured = True
    ups = downs = 0
    for factor in noise:
        wanted = needed(world.demand(size, factor), size, goal)
        if wanted > size:
            assert not downs, "what it gave back it does not ask for again"
            measured = measured and world.load / size <= MOST_BUSY
        ups += wanted > size
        downs += wanted < size
        size = wanted
    assert not (ups and downs and measured)


def test_no_requests_need_the_least() -> None:
    goal = Goal(1.0, 2, 8, 32)
    assert needed(Demand(), 8, goal) == 2
    assert needed(Demand(ongoing=3.0), 8, goal) == 8, "answers that still run are not cut short"


def test_a_prompt_longer_than_the_target_does_not_ask_for_all_there_is() -> None:
    """More replicas prefill no prompt faster: what they can mend is the wait."""
    demand = Demand(1.0, 5.0, 6.0)
    assert needed(demand, 12, Goal(1.0, 1, 100, 32)) <= 12


def test_requests_that_no_replica_has_a_place_for_ask_for_replicas() -> None:
    """Long answers fill the places, while there is hardly any prefill to wait for."""
    goal = Goal(1.0, 1, 16, 32)
    waiting = Demand(4.0, 0.01, 0.01, ongoing=100.0, queued=36.0)
    assert needed(waiting, 2, goal) == 4
    settled = Demand(4.0, 0.01, 0.01, ongoing=100.0)
    assert needed(settled, 4, goal) == 4, "three would be fuller than 75%"
    assert needed(msgspec.structs.replace(settled, ongoing=70.0), 4, goal) == 3


def test_a_fleet_that_has_just_changed_is_left_alone() -> None:
    goal, flood = Goal(1.0, 1, 16, 32), Demand(10.0, 0.2, 30.0)
    assert decide(flood, Fleet(2, 2, 100.0), goal, 129.0, 30.0) == 2
    assert decide(flood, Fleet(2, 2, 100.0), goal, 130.0, 30.0) == 4


def test_replicas_that_are_still_to_come_are_waited_for() -> None:
    goal, flood = Goal(1.0, 1, 16, 32), Demand(10.0, 0.2, 30.0)
    assert decide(flood, Fleet(2, 4, 0.0), goal, 100.0, 30.0) == 4
    quiet = Demand(0.1, 0.2, 0.2)
    assert decide(quiet, Fleet(2, 4, 0.0), goal, 100.0, 30.0) == 1, "nobody needs them any more"


def test_a_fleet_that_shrinks_ends_that_first_unless_more_are_needed_again() -> None:
    goal, flood = Goal(1.0, 1, 16, 32), Demand(10.0, 0.2, 30.0)
    assert decide(Demand(2.0, 0.2, 0.3), Fleet(4, 3, 0.0), goal, 100.0, 30.0) == 3
    assert decide(flood, Fleet(4, 3, 0.0), goal, 100.0, 30.0) > 4
