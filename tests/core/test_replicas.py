"""The replica table, row by row."""

from __future__ import annotations

import pytest

from cp_ray.core.replicas import ReplicaTable, Verdict
from cp_ray.core.types import EvictionReport, ReplicaId, ReplicaInfo

R = ReplicaId("r")


def live_at(epoch: int, seq: int) -> ReplicaTable:
    table = ReplicaTable()
    table.set_live([ReplicaInfo(R, 16, 1000)])
    if (epoch, seq) != (0, 0):
        table.receive(EvictionReport(R, epoch, seq - 1, ()))
    return table


@pytest.mark.parametrize(
    ("epoch", "seq", "verdict", "accepts_next"),
    [
        (1, 5, Verdict.APPLY, (1, 6)),
        (1, 4, Verdict.STALE, (1, 5)),
        (0, 99, Verdict.STALE, (1, 5)),
        (1, 8, Verdict.GAP, (1, 9)),
        (2, 0, Verdict.NEW_EPOCH, (2, 1)),
        (3, 7, Verdict.NEW_EPOCH, (3, 8)),
    ],
)
def test_a_report_to_a_live_replica_is_judged_by_the_table(
    epoch: int, seq: int, verdict: Verdict, accepts_next: tuple[int, int]
) -> None:
    table = live_at(1, 5)
    assert table.receive(EvictionReport(R, epoch, seq, ())) is verdict
    assert table.receive(EvictionReport(R, *accepts_next, ())) is Verdict.APPLY
    table.check()


def test_a_report_of_an_absent_replica_is_unknown() -> None:
    assert ReplicaTable().receive(EvictionReport(R, 0, 0, ())) is Verdict.UNKNOWN


def test_a_replica_that_left_and_came_back_starts_at_epoch_0() -> None:
    table = live_at(1, 5)
    assert table.set_live([]) == (R,)
    table.drop(R)
    table.set_live([ReplicaInfo(R, 16, 1000)])
    assert table.receive(EvictionReport(R, 0, 0, ())) is Verdict.APPLY
    table.check()


def test_a_freed_bit_is_given_to_the_next_that_joins_and_never_bit_0() -> None:
    table = ReplicaTable()
    infos = [ReplicaInfo(ReplicaId(name), 16, 1000) for name in "abc"]
    table.set_live(infos)
    bits = {table.bit(info.replica) for info in infos}
    assert bits == {1, 2, 3}
    for gone in table.set_live([infos[0], infos[2]]):
        table.drop(gone)
    table.set_live([infos[0], infos[2], ReplicaInfo(ReplicaId("d"), 16, 1000)])
    assert table.bit(ReplicaId("d")) == 2
    assert table.mask == 0b1110
    table.check()
