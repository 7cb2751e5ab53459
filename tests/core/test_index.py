"""What the index decides, one sentence a test."""

from __future__ import annotations

from cp_ray.core.index import ContextIndex
from cp_ray.core.load import Work
from cp_ray.core.offline import OfflineOrders
from cp_ray.core.trust import Trust
from cp_ray.core.types import (
    Dump,
    DumpRequest,
    Eviction,
    EvictionReport,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Routed,
    Settled,
    Step,
)
from tests.paper.worked_examples import C1, C2, C3, context, request, show

R = [ReplicaId(f"r{number}") for number in range(4)]


def fleet(count: int = 2) -> ContextIndex:
    index = ContextIndex()
    index.set_replicas([ReplicaInfo(name, 16, 100_000) for name in R[:count]])
    return index


def one(index: ContextIndex, name: str, *blocks: int, now: float = 0.0) -> Step:
    (step,) = index.plan([request(name, context(*blocks))], now)
    index.check()
    return step


def settle(index: ContextIndex, step: Step) -> None:
    index.hear(FirstToken(step.request_id), 0.0)
    index.hear(Settled(step.request_id, step.reused_tokens, ok=True), 0.0)
    index.check()


def test_a_request_goes_to_the_replica_that_holds_its_prefix() -> None:
    index = fleet()
    first = one(index, "a", 1, 2, 3)
    settle(index, first)
    again = one(index, "b", 3, 2, 1)
    assert again.replica == first.replica
    assert again.context == context(1, 2, 3)
    assert again.reused_tokens == 288, "300 block tokens in whole pages of 16, the last not cached"
    assert (first.reason, again.reason) == ("load", "holder")


def test_what_was_planned_at_once_is_not_forgotten_with_a_new_replicas_second_report() -> None:
    """SGLang begins in epoch 1, as its first word is that its cache is empty."""
    index = ContextIndex()
    index.apply(EvictionReport(R[0], 1, 0, ()))
    index.set_replicas([ReplicaInfo(R[0], 16, 100_000)])
    settle(index, one(index, "a", 1, 2, 3))
    assert index.apply(EvictionReport(R[0], 1, 1, ()))
    assert one(index, "b", 1, 2, 3).reused_tokens == 288


def test_strangers_spread_over_the_fleet() -> None:
    index = fleet(4)
    steps = [one(index, f"q{i}", 10 * i, 10 * i + 1) for i in range(8)]
    used = [step.replica for step in steps]
    assert {used.count(name) for name in R} == {2}


def test_a_planned_prefix_counts_as_held_by_the_siblings_of_its_window() -> None:
    index = fleet()
    steps = index.plan([request(f"s{i}", context(1, 2, 3, 4)) for i in range(3)], 0.0)
    assert len({step.replica for step in steps}) == 1
    assert steps[1].reused_tokens == 400 // 16 * 16


def test_a_busy_holder_is_left_when_waiting_costs_more_than_prefilling_again() -> None:
    index = fleet()
    first = one(index, "a", 1, 2)
    settle(index, first)
    for number in range(12):
        name = RequestId(f"busy{number}")
        index.load.ledger.reserve(name, first.replica or R[0], Work(0, 1000, 0.1), 0.0)
    assert one(index, "b", 1, 2).replica != first.replica


def test_an_order_held_elsewhere_is_followed_on_a_new_replica() -> None:
    index = fleet()
    first = one(index, "a", 1, 2, 3)
    settle(index, first)
    index.load.ledger.reserve(RequestId("busy"), first.replica or R[0], Work(0, 100_000, 10.0), 0.0)
    other = one(index, "b", 3, 1, 2)
    assert other.replica != first.replica
    assert other.context == context(1, 2, 3)
    assert other.reused_tokens == 0


def test_heads_do_not_share_blocks() -> None:
    index = fleet()
    settle(index, one(index, "a", 1, 2))
    foreign = PlanRequest(RequestId("b"), HeadId("other"), 0, context(1, 2), (100, 100), 1)
    (step,) = index.plan([foreign], 0.0)
    assert step.reused_tokens == 0


def test_a_later_turn_goes_where_the_conversation_is() -> None:
    index = fleet(4)
    first = one(index, "turn1", 1, 2)
    settle(index, first)
    turn2 = PlanRequest(
        RequestId("turn2"),
        HeadId("after turn 1"),
        250,
        context(5),
        (100,),
        10,
        movable=False,
        predecessor=RequestId("turn1"),
    )
    (step,) = index.plan([turn2], 0.0)
    assert step.replica == first.replica
    assert step.reused_tokens == 201 // 16 * 16, "turn 1's prompt was 201 tokens"


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


def test_a_replica_that_leaves_takes_its_prefixes_and_its_load_with_it() -> None:
    index = fleet()
    first = one(index, "a", 1, 2)
    survivors = [name for name in R[:2] if name != first.replica]
    index.set_replicas([ReplicaInfo(name, 16, 100_000) for name in survivors])
    index.check()
    step = one(index, "b", 1, 2)
    assert (step.replica, step.reused_tokens) == (survivors[0], 0)
    index.hear(Settled(RequestId("a"), 0, ok=True), 0.0)
    index.check()


def test_a_spill_moves_the_prefix_to_where_the_request_really_ran() -> None:
    index = fleet()
    first = one(index, "a", 1, 2)
    other = next(name for name in R[:2] if name != first.replica)
    index.hear(Routed(RequestId("a"), other), 0.0)
    settle(index, first)
    assert one(index, "b", 2, 1).replica == other


def test_a_failed_request_leaves_nothing_behind() -> None:
    index = fleet()
    first = one(index, "a", 1, 2)
    index.hear(Settled(first.request_id, 0, ok=False), 0.0)
    index.hear(Settled(first.request_id, 0, ok=False), 0.0)
    index.check()
    counters = index.counters()
    assert (counters["records"], counters["reserved"]) == (0, 0)
    assert counters["unknown_feedback"] == 1


def test_without_replicas_the_plan_passes_through() -> None:
    index = ContextIndex()
    step = one(index, "a", 2, 1)
    assert (step.replica, step.context, step.reason) == (None, context(2, 1), "passthrough")


def test_the_same_request_id_twice_passes_through() -> None:
    index = fleet()
    one(index, "a", 1)
    assert one(index, "a", 1).reason == "passthrough"


def test_a_fixed_order_is_matched_as_it_stands() -> None:
    index = fleet(1)
    settle(index, one(index, "a", 1, 2, 3))
    (step,) = index.plan([request("b", context(1, 3, 2), movable=False)], 0.0)
    assert step.context == context(1, 3, 2)
    assert step.reused_tokens == 96


def test_an_offline_index_gives_orders_and_survives_its_file() -> None:
    builder = ContextIndex()
    steps = builder.build([C1, C2, C3])
    assert [show(step.context) for step in steps] == ["{1, 2, 3}", "{1, 2, 6}", "{1, 4, 0}"]
    index = ContextIndex(offline=OfflineOrders.load(builder.offline.dump()))
    index.set_replicas([ReplicaInfo(R[0], 16, 100_000)])
    step = one(index, "a", 6, 2, 1)
    assert show(step.context) == "{1, 2, 6}"
    assert (step.reused_tokens, step.reason) == (0, "load")


def test_a_reservation_whose_end_was_never_heard_is_swept() -> None:
    index = fleet()
    one(index, "a", 1, now=0.0)
    one(index, "b", 2, now=1000.0)
    assert index.counters()["leases_swept"] == 1
    assert index.counters()["reserved"] == 1


def test_a_plan_whose_end_was_never_heard_is_no_ghost() -> None:
    index = fleet()
    one(index, "a", 1, 2, now=0.0)
    assert one(index, "b", 1, 2, now=5000.0).reused_tokens == 0


def test_an_eviction_heard_before_the_spill_it_follows_is_not_lost() -> None:
    index = fleet()
    first = one(index, "a", 1, 2)
    other = next(name for name in R[:2] if name != first.replica)
    index.apply(EvictionReport(other, 0, 0, (Eviction(RequestId("a"), 0),)))
    index.hear(Routed(RequestId("a"), other), 0.0)
    index.check()
    assert one(index, "b", 1, 2).reused_tokens == 0
