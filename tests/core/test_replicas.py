"""The replica table, row by row."""

from __future__ import annotations

import pytest

from cp_ray.core.replicas import ASK_AGAIN_S, MOST_ABSENT, RESYNC_S, Due, ReplicaTable, Verdict
from cp_ray.core.types import Dump, DumpRequest, EvictionReport, ReplicaId, ReplicaInfo

R = ReplicaId("r")


def live_at(epoch: int, seq: int) -> ReplicaTable:
    table = ReplicaTable()
    table.set_live([ReplicaInfo(R, 16, 1000)])
    if (epoch, seq) != (0, 0):
        table.receive(EvictionReport(R, epoch, seq - 1, ()))
    return table


def report(epoch: int, seq: int) -> EvictionReport:
    return EvictionReport(R, epoch, seq, ())


def dump(epoch: int, seq: int) -> Dump:
    return Dump(R, epoch, seq, {})


LIVE_ROWS = [
    (report(1, 5), Verdict.APPLY, True, (1, 6)),
    (report(1, 4), Verdict.STALE, True, (1, 5)),
    (report(0, 99), Verdict.STALE, True, (1, 5)),
    (report(1, 8), Verdict.GAP, False, (1, 9)),
    (report(2, 0), Verdict.NEW_EPOCH, True, (2, 1)),
    (report(3, 7), Verdict.NEW_EPOCH, True, (3, 8)),
    (dump(1, 4), Verdict.STALE, True, (1, 5)),
    (dump(1, 5), Verdict.DUMP, True, (1, 6)),
    (dump(1, 9), Verdict.DUMP, True, (1, 10)),
    (dump(2, 3), Verdict.DUMP, True, (2, 4)),
    (dump(0, 9), Verdict.STALE, True, (1, 5)),
]


@pytest.mark.parametrize(("message", "verdict", "believed", "accepts_next"), LIVE_ROWS)
def test_a_message_of_a_live_replica_is_judged_by_the_table(
    message: EvictionReport | Dump, verdict: Verdict, believed: bool, accepts_next: tuple[int, int]
) -> None:
    table = live_at(1, 5)
    assert table.receive(message) is verdict
    assert table.believed(R) is believed
    table.check()
    assert table.receive(report(*accepts_next)) is Verdict.APPLY
    table.check()


RESYNCING_ROWS = [
    (report(1, 9), Verdict.APPLY, False, (1, 10)),
    (report(1, 6), Verdict.APPLY, False, (1, 9)),
    (report(1, 11), Verdict.GAP, False, (1, 12)),
    (report(0, 11), Verdict.STALE, False, (1, 9)),
    (report(2, 1), Verdict.NEW_EPOCH, True, (2, 2)),
    (dump(1, 6), Verdict.STALE, False, (1, 9)),
    (dump(1, 7), Verdict.DUMP, True, (1, 9)),
    (dump(1, 9), Verdict.DUMP, True, (1, 10)),
    (dump(2, 0), Verdict.DUMP, True, (2, 1)),
    (dump(0, 11), Verdict.STALE, False, (1, 9)),
]


@pytest.mark.parametrize(("message", "verdict", "believed", "accepts_next"), RESYNCING_ROWS)
def test_a_message_of_a_resyncing_replica_is_judged_by_the_table(
    message: EvictionReport | Dump, verdict: Verdict, believed: bool, accepts_next: tuple[int, int]
) -> None:
    table = live_at(1, 5)
    table.receive(report(1, 8))  # 5 to 7 are missing
    assert table.receive(message) is verdict
    assert table.believed(R) is believed
    table.check()
    assert table.receive(report(*accepts_next)) is Verdict.APPLY


def test_a_second_gap_needs_a_later_dump() -> None:
    table = live_at(0, 0)
    table.receive(report(0, 2))
    table.receive(report(0, 5))
    assert table.receive(dump(0, 3)) is Verdict.STALE
    assert table.receive(dump(0, 4)) is Verdict.DUMP
    assert table.receive(report(0, 6)) is Verdict.APPLY


def test_a_resyncing_replica_is_asked_again_and_then_forgotten() -> None:
    table = live_at(0, 0)
    assert table.due(0.0) == Due((), ())
    table.receive(report(0, 2))
    asked = Due((DumpRequest(R),), ())
    assert table.due(100.0) == asked
    assert table.due(100.0 + ASK_AGAIN_S / 2) == Due((), ())
    assert table.due(100.0 + ASK_AGAIN_S) == asked
    assert table.due(100.0 + RESYNC_S) == Due((), (R,))
    assert table.believed(R)
    assert table.receive(report(0, 3)) is Verdict.APPLY
    table.check()


def test_a_distrusted_replica_is_asked_to_begin_anew_and_a_dump_or_epoch_ends_it() -> None:
    for answer, verdict in ((dump(1, 5), Verdict.DUMP), (report(2, 0), Verdict.NEW_EPOCH)):
        table = live_at(1, 5)
        table.distrust(R)
        assert not table.believed(R)
        assert table.due(0.0).ask == (DumpRequest(R, rebuild=True),)
        assert table.receive(dump(1, 4)) is Verdict.STALE
        assert table.receive(answer) is verdict
        assert table.believed(R)
        table.check()


def test_only_believed_replicas_are_in_the_mask() -> None:
    table = ReplicaTable()
    table.set_live([ReplicaInfo(ReplicaId(name), 16, 1000) for name in "ab"])
    table.distrust(ReplicaId("a"))
    assert table.mask == 1 << table.bit(ReplicaId("b"))


def test_a_report_of_an_absent_replica_is_unknown() -> None:
    assert ReplicaTable().receive(EvictionReport(R, 0, 0, ())) is Verdict.UNKNOWN


@pytest.mark.parametrize("early", [[(0, 0)], [(1, 0)], [(0, 3), (1, 0), (1, 1)], [(1, 4), (1, 2)]])
def test_a_replica_heard_before_it_was_live_goes_on_from_there(
    early: list[tuple[int, int]],
) -> None:
    table = ReplicaTable()
    for position in early:
        assert table.receive(report(*position)) is Verdict.UNKNOWN
    table.set_live([ReplicaInfo(R, 16, 1000)])
    epoch, seq = max(early)
    assert table.position(R) == (epoch, seq + 1, None)
    assert table.receive(report(epoch, seq + 1)) is Verdict.APPLY
    assert table.receive(report(epoch, seq + 3)) is Verdict.GAP
    table.check()


def test_replicas_that_never_become_live_are_forgotten_in_the_end() -> None:
    table = ReplicaTable()
    for number in range(MOST_ABSENT + 1):
        table.receive(EvictionReport(ReplicaId(f"r{number}"), 1, 0, ()))
    table.set_live([ReplicaInfo(ReplicaId(f"r{number}"), 16, 1000) for number in (0, 1)])
    assert table.position(ReplicaId("r0")) == (0, 0, None)
    assert table.position(ReplicaId("r1")) == (1, 1, None)


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
