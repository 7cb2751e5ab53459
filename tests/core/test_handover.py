"""When a replica leaves, its conversations are handed to those that stay, while these are idle."""

from __future__ import annotations

from cp_ray.core.types import (
    BlockId,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
    Step,
)
from cp_ray.core.warming import HANDED_OVER, Offer, Warming
from tests.core.small_fleet import PAGE, SmallFleet

A, B = ReplicaId("r0"), ReplicaId("r1")


class Talks:
    """Two replicas; every conversation's turns are planned, answered, and noted."""

    def __init__(self, cache_tokens: int | None = None) -> None:
        self.fleet = SmallFleet(2, cache_tokens)
        self.index = self.fleet.index
        self.warming = Warming(self.index)

    def turn(self, talk: str, number: int, only: ReplicaId | None = None) -> Step:
        """Turn `number` of one: a head that grows by 100 tokens, one block, a question."""
        self.fleet.now += 1.0
        before = RequestId(f"{talk}{number - 1}") if number else None
        request = PlanRequest(
            RequestId(f"{talk}{number}"),
            HeadId(f"{talk}{number}"),
            32 + 100 * number,
            (BlockId(f"{talk}{number}"),),
            (60,),
            20,
            movable=False,
            predecessor=before,
            conversation=talk,
        )
        (step,) = self.index.plan([request], self.fleet.now, only=only)
        self.warming.asked([request])
        self.index.hear(FirstToken(request.request_id), self.fleet.now)
        self.index.hear(Settled(request.request_id, 0, ok=True), self.fleet.now)
        return step

    def leave(self, replica: ReplicaId, *stay: ReplicaId) -> None:
        talks = self.warming.leaving({replica})
        capacity = next(iter(self.index.replicas.live.values())).capacity_tokens
        self.index.set_replicas([ReplicaInfo(name, PAGE, capacity) for name in stay])
        self.warming.left(talks)

    def claim(self, offer: Offer) -> Step | None:
        return self.warming.claim(offer, offer.request, self.fleet.now)


def test_the_next_turn_goes_to_the_replica_that_took_the_conversation_over() -> None:
    talks = Talks()
    talks.turn("x", 0, only=A)
    talks.turn("x", 1, only=A)
    talks.leave(A, B)
    (offer,) = talks.warming.offers()
    assert offer == Offer(B, RequestId("x1"), 132 + 60 + 20, again=True), "the last turn, whole"
    assert talks.claim(offer) is not None
    talks.index.hear(FirstToken(RequestId("x1")), talks.fleet.now)
    talks.index.hear(Settled(RequestId("x1"), 0, ok=True), talks.fleet.now)
    step = talks.turn("x", 2)
    assert step.replica == B
    assert step.reused_tokens == (132 + 60 + 20) // PAGE * PAGE
    assert talks.warming.counters() == {"handed_over": 1, "warmed_tokens": 212}
    talks.index.check()


def test_a_conversation_that_went_on_elsewhere_is_not_handed_over_any_more() -> None:
    talks = Talks()
    talks.turn("x", 0, only=A)
    talks.leave(A, B)
    (offer,) = talks.warming.offers()
    talks.turn("x", 1)
    assert talks.claim(offer) is None
    assert talks.warming.offers() == []
    talks.index.check()


def test_conversations_of_replicas_that_stay_are_left_alone() -> None:
    talks = Talks()
    talks.turn("x", 0, only=A)
    talks.turn("y", 0, only=B)
    talks.leave(A, B)
    assert [offer.request for offer in talks.warming.offers()] == ["x0"]


def test_what_was_said_last_is_handed_over_first_and_spread_over_those_that_stay() -> None:
    talks = Talks()
    talks.fleet.index.set_replicas(
        [ReplicaInfo(ReplicaId(f"r{number}"), PAGE, 1 << 20) for number in range(3)]
    )
    for talk in "uvwxyz":
        talks.turn(talk, 0, only=A)
    talks.leave(A, B, ReplicaId("r2"))
    offers = talks.warming.offers()
    assert [offer.request for offer in offers if offer.replica == B] == ["z0", "x0", "v0"]
    assert [offer.request for offer in offers if offer.replica == "r2"] == ["y0", "w0", "u0"]


def test_half_of_a_cache_is_filled_at_most() -> None:
    talks = Talks(cache_tokens=640)
    for talk in "wxyz":
        talks.turn(talk, 0, only=A)
    talks.leave(A, B)
    assert [offer.tokens for offer in talks.warming.offers()] == [112, 112]


def test_a_conversation_whose_prompt_is_partly_evicted_is_not_handed_over() -> None:
    talks = Talks()
    talks.turn("x", 0, only=A)
    talks.index.memory.shrink(RequestId("x0"), 40)
    talks.leave(A, B)
    assert talks.warming.offers() == []


def test_without_a_replica_that_stays_nothing_is_offered() -> None:
    talks = Talks()
    talks.turn("x", 0, only=A)
    talks.leave(A)
    assert talks.warming.offers() == []


def test_the_conversations_looked_after_are_bounded() -> None:
    talks = Talks()
    for number in range(HANDED_OVER + 50):
        talks.turn(f"t{number}-", 0, only=A)
    assert len(talks.warming.leaving({A})) == HANDED_OVER
