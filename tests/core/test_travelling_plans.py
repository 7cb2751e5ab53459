"""Plans that travel with their requests: what a lost one has reserved does not stay reserved."""

from __future__ import annotations

from cp_ray.core.arrivals import PATIENCE_S, Arrivals
from cp_ray.core.index import ContextIndex
from cp_ray.core.types import Arrived, ReplicaInfo, Step
from tests.core.index_steps import R, one, settle


def _fleet() -> ContextIndex:
    index = ContextIndex(arrivals=Arrivals())
    index.set_replicas([ReplicaInfo(name, 16, 100_000) for name in R[:2]])
    return index


def _placed(index: ContextIndex, prefix: str, count: int, now: float) -> set[str | None]:
    """Where so many strangers go, one after the other."""
    steps: list[Step] = []
    for number in range(count):
        step = one(index, f"{prefix}{number}", 1000 * len(prefix) + number, now=now)
        index.hear(Arrived(step.request_id), now)
        settle(index, step)
        steps.append(step)
    return {step.replica for step in steps}


def test_a_plan_that_arrives_nowhere_is_no_ghost_on_its_replica() -> None:
    index = _fleet()
    lost = one(index, "lost", 1, 2)
    assert lost.replica not in _placed(index, "soon", 6, 1.0), "it may still come"
    assert _placed(index, "later", 12, PATIENCE_S) == set(R[:2])
    assert index.counters()["reserved"] == 0
    assert index.counters()["plans_lost"] == 1
    assert one(index, "again", 1, 2, now=PATIENCE_S).reused_tokens == 0, "nor is it held"


def test_a_plan_that_has_arrived_is_waited_for() -> None:
    index = _fleet()
    index.hear(Arrived(one(index, "slow", 1, 2).request_id), 0.5)
    one(index, "later", 5, now=2 * PATIENCE_S)
    assert index.counters()["reserved"] == 2
    assert index.counters()["plans_lost"] == 0


def test_a_plan_that_arrives_late_is_served_all_the_same() -> None:
    index = _fleet()
    late = one(index, "late", 1, 2)
    one(index, "later", 5, now=PATIENCE_S)
    index.hear(Arrived(late.request_id), PATIENCE_S)
    settle(index, late)
    assert index.counters()["plans_lost"] == 1
    assert index.counters()["reserved"] == 1


def test_where_the_planner_also_sends_only_the_lease_ends() -> None:
    index = ContextIndex()
    index.set_replicas([ReplicaInfo(R[0], 16, 100_000)])
    one(index, "queued", 1, 2)
    one(index, "later", 5, now=10 * PATIENCE_S)
    assert index.counters()["reserved"] == 2
