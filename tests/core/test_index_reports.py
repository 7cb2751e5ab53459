"""What the index believes after reports, gaps, dumps and audits, one sentence a test."""

from __future__ import annotations

from cp_ray.core.index import ContextIndex
from cp_ray.core.trust import Trust
from cp_ray.core.types import (
    Dump,
    DumpRequest,
    Eviction,
    EvictionReport,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Routed,
    Settled,
)
from tests.core.index_steps import R, fleet, one, settle
from tests.paper.worked_examples import show


def test_what_was_planned_at_once_is_not_forgotten_with_a_new_replicas_second_report() -> None:
    """SGLang begins in epoch 1, as its first word is that its cache is empty."""
    index = ContextIndex()
    index.apply(EvictionReport(R[0], 1, 0, ()))
    index.set_replicas([ReplicaInfo(R[0], 16, 100_000)])
    settle(index, one(index, "a", 1, 2, 3))
    assert index.apply(EvictionReport(R[0], 1, 1, ()))
    assert one(index, "b", 1, 2, 3).reused_tokens == 288


def test_an_eviction_makes_the_index_forget_the_request() -> None:
    index = fleet()
    first = one(index, "a", 1, 2)
    settle(index, first)
    gone = EvictionReport(first.replica or R[0], 0, 0, (Eviction(RequestId("a"), 0),))
    assert index.apply(gone)
    index.check()
    assert one(index, "b", 1, 2).reused_tokens == 0


def test_a_partial_eviction_keeps_the_blocks_that_still_fit() -> None:
    index = fleet()
    first = one(index, "a", 1, 2, 3)
    settle(index, first)
    report = EvictionReport(first.replica or R[0], 0, 0, (Eviction(RequestId("a"), 250),))
    index.apply(report)
    index.check()
    step = one(index, "b", 3, 2, 1)
    assert show(step.context) == "{1, 2, 3}"
    assert step.reused_tokens == 192, "blocks 1 and 2, in whole pages"


def test_after_a_gap_the_replica_is_planned_by_load_only_until_its_dump() -> None:
    index = fleet()
    first = one(index, "a", 1, 2)
    settle(index, first)
    second = one(index, "b", 1, 2, 3)
    settle(index, second)
    replica = first.replica or R[0]
    assert second.replica == replica
    assert not index.apply(EvictionReport(replica, 0, 3, ()))
    index.check()
    blind = one(index, "c", 1, 2)
    assert (blind.reused_tokens, blind.reason) == (0, "load")
    index.hear(Settled(RequestId("c"), 0, ok=False), 0.0)
    assert index.dump_requests(0.0) == (DumpRequest(replica),)
    assert index.apply(Dump(replica, 0, 4, {RequestId("a"): 200, RequestId("gone"): 500}))
    index.check()
    assert index.counters()["records"] == 1, "b is not in the dump"
    again = one(index, "d", 1, 2)
    assert (again.replica, again.reused_tokens) == (replica, 192)


def test_a_dump_that_does_not_come_makes_the_index_forget_the_replica() -> None:
    index = fleet()
    settle(index, one(index, "a", 1, 2))
    replica = next(iter(index.replicas.live))
    index.apply(EvictionReport(replica, 0, 3, ()))
    assert len(index.dump_requests(0.0)) == 1
    assert index.dump_requests(100.0) == ()
    index.check()
    assert index.counters()["replicas_forgotten"] == 1
    assert index.replicas.believed(replica)


def test_an_eviction_heard_while_resyncing_outlives_the_dump() -> None:
    index = fleet(1)
    settle(index, one(index, "a", 1, 2))
    index.apply(EvictionReport(R[0], 0, 3, ()))
    index.apply(EvictionReport(R[0], 0, 5, (Eviction(RequestId("a"), 100),)))
    index.apply(Dump(R[0], 0, 4, {RequestId("a"): 200}))
    assert one(index, "b", 1, 2).reused_tokens == 96


def mismatch(index: ContextIndex, name: str) -> ReplicaId:
    step = one(index, name, 7)
    index.hear(Settled(step.request_id, 0, ok=True, held_tokens=96), 0.0)
    return step.replica or R[0]


def test_a_replica_whose_view_is_wrong_is_quarantined_and_trusted_again_once_it_began_anew() -> (
    None
):
    index = fleet(1)
    for number in range(3):
        mismatch(index, f"wrong{number}")
    assert index.trust.of(R[0]) is Trust.QUARANTINED
    assert one(index, "a", 7).reused_tokens == 0
    assert index.dump_requests(0.0) == (DumpRequest(R[0], rebuild=True),)
    index.apply(EvictionReport(R[0], 1, 0, ()))
    index.check()
    assert index.trust.of(R[0]) is Trust.TRUSTED
    settle(index, one(index, "b", 7))
    assert one(index, "c", 7).reused_tokens == 96


def test_within_one_engine_block_is_no_mismatch_and_an_unknown_view_no_audit() -> None:
    index = fleet(1)
    for number, (held, cached) in enumerate([(32, 16), (16, 32), (None, 96), (None, 0)]):
        step = one(index, f"q{number}", number)
        index.hear(Settled(step.request_id, cached, ok=True, held_tokens=held), 0.0)
    counters = index.counters()
    assert (counters["audited"], counters["audit_mismatches"]) == (2, 0)


def test_a_new_epoch_forgets_the_replica_and_an_old_one_is_ignored() -> None:
    index = fleet()
    first = one(index, "a", 1, 2)
    settle(index, first)
    replica = first.replica or R[0]
    index.apply(EvictionReport(replica, 1, 0, ()))
    second = one(index, "b", 1, 2)
    assert second.reused_tokens == 0
    late = EvictionReport(second.replica or R[0], 0, 9, (Eviction(RequestId("b"), 0),))
    assert not index.apply(late)


def test_an_eviction_heard_before_the_spill_it_follows_is_not_lost() -> None:
    index = fleet()
    first = one(index, "a", 1, 2)
    other = next(name for name in R[:2] if name != first.replica)
    index.apply(EvictionReport(other, 0, 0, (Eviction(RequestId("a"), 0),)))
    index.hear(Routed(RequestId("a"), other), 0.0)
    index.check()
    assert one(index, "b", 1, 2).reused_tokens == 0
