"""Offers to warm: to idle replicas only, claimed once, given up when nobody has the tokens."""

from __future__ import annotations

from cp_ray.core.load import Work
from cp_ray.core.types import FirstToken, ReplicaInfo, RequestId, Settled
from cp_ray.core.warming import PATIENCE, Offer, Warming
from tests.core.small_fleet import SmallFleet


def joined(**uses: int) -> tuple[SmallFleet, Warming, ReplicaInfo]:
    """One replica was asked each context so often; then another joined."""
    fleet = SmallFleet(2, None)
    old, new = fleet.index.replicas.live.values()
    fleet.index.set_replicas([old])
    for context, count in uses.items():
        for _ in range(count):
            fleet.ask(context, movable=False)
    fleet.index.set_replicas([old, new])
    warming = Warming(fleet.index)
    warming.joined([new])
    return fleet, warming, new


def claim(fleet: SmallFleet, warming: Warming, offer: Offer, name: str) -> bool:
    return warming.claim(offer, RequestId(name), fleet.now) is not None


def test_the_most_used_is_offered_first_and_names_a_prompt_that_begins_so() -> None:
    _, warming, new = joined(abc=3, xy=5)
    first, second = warming.offers()
    assert first == Offer(new.replica, RequestId("q8"), 32 + 2 * 160)
    assert second == Offer(new.replica, RequestId("q3"), 32 + 3 * 160)


def test_an_offer_is_planned_once_on_the_replica_that_joined() -> None:
    fleet, warming, new = joined(abc=3)
    (offer,) = warming.offers()
    step = warming.claim(offer, RequestId("w1"), fleet.now)
    assert step is not None
    assert (step.replica, step.context, step.reused_tokens) == (new.replica, ("a", "b", "c"), 0)
    assert not claim(fleet, warming, offer, "w2")
    fleet.index.hear(FirstToken(RequestId("w1")), fleet.now)
    fleet.index.hear(Settled(RequestId("w1"), 0, ok=True), fleet.now)
    assert warming.offers() == []
    assert warming.counters() == {"warmed": 1, "warmed_tokens": 512}
    fleet.index.check()


def test_nothing_is_offered_or_claimed_while_the_replica_has_prefill_to_do() -> None:
    fleet, warming, new = joined(abc=3, xy=5)
    first, second = warming.offers()
    ledger = fleet.index.load.ledger
    ledger.reserve(RequestId("client"), new.replica, Work(0, 900, 1.0), fleet.now)
    assert warming.offers() == []
    assert not claim(fleet, warming, first, "w1")
    ledger.free(RequestId("client"))
    assert warming.offers() == [second], "what came too late is not tried again"
    assert claim(fleet, warming, second, "w2")
    assert warming.offers() == [], "one at a time"


def test_a_replica_that_left_is_warmed_no_more() -> None:
    fleet, warming, new = joined(abc=3)
    (offer,) = warming.offers()
    fleet.index.set_replicas([i for i in fleet.index.replicas.live.values() if i != new])
    assert not claim(fleet, warming, offer, "w1")
    assert warming.offers() == []


def test_what_nobody_can_send_is_given_up() -> None:
    _, warming, _ = joined(abc=3)
    assert sum(len(warming.offers()) for _ in range(3 * PATIENCE)) == PATIENCE
    assert warming.counters() == {"warm_prefixes_out_of_reach": 1}
