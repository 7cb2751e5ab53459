"""What the index decides, one sentence a test."""

from __future__ import annotations

from cp_ray.core.index import ContextIndex
from cp_ray.core.load import Work
from cp_ray.core.offline import OfflineOrders
from cp_ray.core.types import (
    HeadId,
    PlanRequest,
    ReplicaInfo,
    RequestId,
    Routed,
    Settled,
)
from tests.core.index_steps import R, fleet, one, settle
from tests.paper.worked_examples import C1, C2, C3, context, request, show


def test_a_request_goes_to_the_replica_that_holds_its_prefix() -> None:
    index = fleet()
    first = one(index, "a", 1, 2, 3)
    settle(index, first)
    again = one(index, "b", 3, 2, 1)
    assert again.replica == first.replica
    assert again.context == context(1, 2, 3)
    assert again.reused_tokens == 288, "300 block tokens in whole pages of 16, the last not cached"
    assert (first.reason, again.reason) == ("load", "holder")


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
