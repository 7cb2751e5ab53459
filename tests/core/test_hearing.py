"""The brownout ladder: what is believed of a replica that is not heard, and who has stalled."""

from __future__ import annotations

from cp_ray.core.hearing import SILENT_S, TTL_S, Hearing
from cp_ray.core.index import ContextIndex
from cp_ray.core.types import (
    BlockId,
    EvictionReport,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
    Step,
)

A, B = ReplicaId("a"), ReplicaId("b")


class Clocked:
    """An index with its hearing, and a clock of whole seconds."""

    def __init__(self, *replicas: ReplicaId) -> None:
        self.index = ContextIndex()
        self.index.set_replicas([ReplicaInfo(name, 1, 10_000) for name in replicas])
        self.hearing = Hearing(self.index)
        self.now = 0.0
        self.hearing.tick(self.now)

    def wait(self, seconds: float, *heard: ReplicaId) -> None:
        for _ in range(int(seconds)):
            self.now += 1
            for replica in heard:
                self.hearing.reported(replica, self.now)
            self.hearing.tick(self.now)
            self.index.check()

    def begin(self, name: str, block: str) -> Step:
        request = PlanRequest(RequestId(name), HeadId(block), 5, (BlockId(block),), (10,), 3)
        (step,) = self.index.plan([request], self.now)
        return step

    def run(self, name: str, block: str) -> Step:
        step = self.begin(name, block)
        self.index.hear(Settled(RequestId(name), 0, ok=True), self.now)
        return step


def test_while_reports_come_all_is_believed() -> None:
    clocked = Clocked(A)
    clocked.run("1", "x")
    clocked.wait(10 * TTL_S, A)
    assert clocked.hearing.rung(A) == "exact"
    assert clocked.run("2", "x").reused_tokens == 15


def test_of_a_silent_replica_only_late_plans_are_believed() -> None:
    clocked = Clocked(A)
    clocked.run("old", "x")
    clocked.wait(SILENT_S + 1)
    assert clocked.hearing.rung(A) == "approximate"
    assert clocked.run("still", "x").reused_tokens == 15
    clocked.wait(TTL_S - 2)
    clocked.run("late", "y")
    clocked.wait(TTL_S - 2)
    assert "old" not in clocked.index.memory.records
    assert clocked.run("again", "y").reused_tokens == 15
    clocked.wait(2 * TTL_S + 2)
    assert not clocked.index.memory.records, "nothing older than two TTL"


def test_a_report_ends_the_doubt_and_keeps_the_rest() -> None:
    clocked = Clocked(A)
    clocked.run("1", "x")
    clocked.wait(SILENT_S + 1)
    clocked.index.apply(EvictionReport(A, 0, 0, ()))
    clocked.wait(TTL_S * 3, A)
    assert clocked.hearing.rung(A) == "exact"
    assert clocked.run("2", "x").reused_tokens == 15


def test_a_replica_that_owes_a_dump_is_planned_by_load() -> None:
    clocked = Clocked(A)
    clocked.index.apply(EvictionReport(A, 0, 5, ()))
    assert clocked.hearing.rung(A) == "load"


def test_a_replica_that_stalled_with_work_gets_nothing_new_until_it_is_heard() -> None:
    clocked = Clocked(A, B)
    assert clocked.begin("hangs", "x").replica == A
    clocked.wait(SILENT_S + 1, B)
    for number in range(10):
        assert clocked.run(str(number), "x").replica == B, "though the other may hold it"
    clocked.hearing.reported(A, clocked.now)
    clocked.wait(1, A, B)
    assert A in {clocked.begin(f"n{number}", f"n{number}").replica for number in range(4)}


def test_a_replica_that_answers_has_not_stalled_though_its_reports_do_not_come() -> None:
    clocked = Clocked(A, B)
    clocked.begin("long", "x")
    clocked.wait(SILENT_S - 1, B)
    clocked.hearing.served(A, clocked.now)
    clocked.wait(5, B)
    assert clocked.index.replicas.usable == [A, B]


def test_an_idle_silent_replica_is_not_shunned_nor_is_anyone_when_all_are_silent() -> None:
    idle = Clocked(A, B)
    idle.wait(SILENT_S + 5, B)
    assert idle.index.replicas.usable == [A, B]
    deaf = Clocked(A, B)
    deaf.begin("1", "x")
    deaf.begin("2", "y")
    deaf.wait(SILENT_S + 5)
    assert deaf.index.replicas.usable == [A, B]


def test_replicas_that_left_are_forgotten_here_too() -> None:
    clocked = Clocked(A, B)
    clocked.begin("hangs", "x")
    clocked.wait(SILENT_S + 1, B)
    clocked.index.set_replicas([ReplicaInfo(B, 1, 10_000)])
    clocked.wait(2, B)
    assert clocked.index.replicas.usable == [B]
    clocked.index.set_replicas([ReplicaInfo(A, 1, 10_000), ReplicaInfo(B, 1, 10_000)])
    clocked.wait(2, B)
    assert clocked.index.replicas.usable == [B, A]
