"""Planted losses of reuse are found under their own cause, and the causes add up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cp_ray.core.load import Work
from cp_ray.core.loss import CAUSES
from cp_ray.core.types import HeadId, PlanRequest, ReplicaId, RequestId
from cp_ray.replay.trace import read_trace
from tests.core.small_fleet import PAGE, SmallFleet

DATA = Path(os.environ.get("CP_RAY_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
PLANTED = 0.99
BLOCKS = ("a", "b", "c", "d")
TEXT = 4 * 160


def largest(losses: dict[str, int], apart_from: tuple[str, ...] = ("cold", "page")) -> str:
    """The cause of most tokens, the question and the rest of a page left out."""
    others = {cause: tokens for cause, tokens in losses.items() if cause not in apart_from}
    return max(others, key=lambda cause: others[cause])


def test_what_nobody_ever_sent_is_cold() -> None:
    fleet = SmallFleet(2, None)
    losses = fleet.ask(BLOCKS)
    assert losses["cold"] == 32 + TEXT + 20
    assert sum(losses.values()) == losses["cold"]


def test_a_repeated_request_loses_its_question_and_the_rest_of_a_page_only() -> None:
    fleet = SmallFleet(2, None)
    fleet.ask(BLOCKS)
    losses = fleet.ask(BLOCKS)
    assert losses["cold"] + losses["page"] == sum(losses.values()) < 20 + PAGE


def test_blocks_in_an_order_that_may_not_change_are_lost_to_order() -> None:
    fleet = SmallFleet(1, None)
    fleet.ask(BLOCKS)
    losses = fleet.ask(tuple(reversed(BLOCKS)), movable=False)
    assert largest(losses) == "order"
    assert losses["order"] >= PLANTED * TEXT


def test_another_tenants_copy_is_behind_the_tenant_wall() -> None:
    fleet = SmallFleet(1, None)
    fleet.ask(BLOCKS, head="one", origins=("h", *BLOCKS))
    losses = fleet.ask([f"two:{b}" for b in BLOCKS], head="two", origins=("h", *BLOCKS))
    assert losses["tenant_wall"] == 32 + TEXT
    assert losses["cold"] == 20


def test_a_block_said_again_in_its_conversation_is_a_missed_deduplication() -> None:
    fleet = SmallFleet(1, None)
    fleet.ask(BLOCKS, conversation="c")
    losses = fleet.ask(("new", *BLOCKS), head="a later turn", conversation="c", movable=False)
    assert losses["missed_deduplication"] >= PLANTED * TEXT
    other = fleet.ask(("newer", *BLOCKS), head="another", conversation="d", movable=False)
    assert other["missed_deduplication"] == 0
    assert largest(other) == "order"


def test_a_prefix_that_left_the_cache_is_lost_to_eviction() -> None:
    fleet = SmallFleet(1, 64 * PAGE)
    fleet.ask(BLOCKS)
    for number in range(4):
        fleet.ask([f"{number}{b}" for b in BLOCKS])
    losses = fleet.ask(BLOCKS)
    assert largest(losses) == "evicted"
    assert losses["evicted"] >= PLANTED * TEXT


def test_a_replica_that_left_took_its_prefixes_along_as_evicted() -> None:
    fleet = SmallFleet(2, None)
    fleet.ask(BLOCKS)
    (gone,) = [name for name, cache in fleet.caches.items() if cache.used_tokens]
    infos = [info for name, info in fleet.index.replicas.live.items() if name != gone]
    fleet.index.set_replicas(infos)
    assert largest(fleet.ask(BLOCKS)) == "evicted"


def test_a_spill_off_the_holder_is_routed_away() -> None:
    fleet = SmallFleet(2, None)
    fleet.ask(BLOCKS)
    (holder,) = [name for name, cache in fleet.caches.items() if cache.used_tokens]
    fleet.divert = next(name for name in fleet.names if name != holder)
    losses = fleet.ask(BLOCKS)
    assert largest(losses) == "routed_away"
    assert losses["routed_away"] >= PLANTED * (32 + TEXT)


def test_a_spill_to_a_replica_nobody_knows_is_routed_away() -> None:
    fleet = SmallFleet(2, None)
    fleet.ask(BLOCKS)
    stranger = ReplicaId("stranger")
    fleet.names.append(stranger)
    fleet.caches[stranger] = type(fleet.caches[fleet.names[0]])(None, PAGE)
    fleet._seq[stranger] = 0
    fleet.divert = stranger
    assert largest(fleet.ask(BLOCKS)) == "routed_away"


def test_lost_reports_make_stale_beliefs() -> None:
    fleet = SmallFleet(1, 64 * PAGE)
    fleet.deaf = True
    fleet.ask(BLOCKS)
    for number in range(4):
        fleet.ask([f"{number}{b}" for b in BLOCKS])
    losses = fleet.ask(BLOCKS)
    assert largest(losses) == "stale"
    assert losses["stale"] >= PLANTED * TEXT


def test_an_engine_that_finds_less_than_its_own_events_say_is_unexplained() -> None:
    fleet = SmallFleet(1, None)
    fleet.ask(BLOCKS)
    fleet.lose_cache(fleet.names[0])
    fleet.lying = True
    losses = fleet.ask(BLOCKS)
    assert largest(losses) == "unexplained"
    assert fleet.index.losses.sums().unexplained_share() > 0.3


def test_a_later_turn_builds_on_the_prompt_before_it() -> None:
    fleet = SmallFleet(1, None)
    fleet.ask(BLOCKS)
    first = PlanRequest(RequestId("t1"), HeadId("x"), 320, (), (), 32)
    fleet.send(first)
    later = PlanRequest(RequestId("t2"), HeadId("y"), 400, (), (), 16, predecessor=RequestId("t1"))
    (step,) = fleet.index.plan([later], fleet.now)
    assert step.reused_tokens == 352
    held = fleet.index.losses
    held.routed(RequestId("t2"), 1)
    assert held.sums().by_cause["order"] == 0


def test_a_request_that_failed_is_not_counted() -> None:
    from cp_ray.core.types import Settled

    fleet = SmallFleet(1, None)
    fleet.ask(BLOCKS)
    before = fleet.index.losses.sums().requests
    request = PlanRequest(RequestId("f"), HeadId("h"), 32, (), (), 16)
    fleet.index.plan([request], fleet.now)
    fleet.index.hear(Settled(RequestId("f"), 0, ok=False), fleet.now)
    fleet.index.hear(Settled(RequestId("never"), 0, ok=True), fleet.now)
    assert fleet.index.losses.sums().requests == before


@pytest.mark.skipif(not DATA.exists(), reason="the public traces are not here (CP_RAY_DATA)")
@pytest.mark.parametrize("name", ["multihoprag", "qasper", "mtrag"])
def test_the_funnel_adds_up_on_traces_with_at_most_one_percent_unexplained(name: str) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not among the traces here")
    fleet = SmallFleet(4, 100_000)
    fleet.check_every = 50
    for request in read_trace(DATA / name, requests=250).requests:
        fleet.ask(request.context, sizes=request.block_tokens, tail_tokens=24)
    sums = fleet.index.losses.sums()
    assert sums.requests == 250
    assert tuple(sums.by_cause) == CAUSES
    assert sum(sums.by_cause.values()) == sums.prompt_tokens - sums.cached_tokens
    assert sums.unexplained_share() <= 0.01
    assert sums.beyond_belief <= 0.01 * sums.cached_tokens + 250 * PAGE
    assert sums.by_cause["cold"] > 0
    assert sums.by_cause["order"] + sums.by_cause["evicted"] > 0


def test_what_another_replica_had_counts_from_the_start_of_the_prompt() -> None:
    fleet = SmallFleet(2, None)
    fleet.ask(BLOCKS)
    (holder,) = [name for name, cache in fleet.caches.items() if cache.used_tokens]
    other = next(name for name in fleet.names if name != holder)
    # So that the plan itself goes off the holder.
    busy = Work(0, 1_000_000, 1000.0, 1000.0)
    fleet.index.load.ledger.reserve(RequestId("busy"), holder, busy, fleet.now)
    losses = fleet.ask(BLOCKS)
    assert fleet.caches[other].used_tokens > 0
    assert losses["routed_away"] >= PLANTED * (32 + TEXT)
