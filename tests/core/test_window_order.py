"""In which order a window is planned and sent."""

from __future__ import annotations

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import (
    BlockId,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
    Step,
)

SIZE = 100


def request(name: str, *blocks: str, head: str = "h", before: str | None = None) -> PlanRequest:
    context = tuple(BlockId(block) for block in blocks)
    predecessor = RequestId(before) if before else None
    head_tokens = 500 if before else 10
    sizes = (SIZE,) * len(context)
    return PlanRequest(
        RequestId(name), HeadId(head), head_tokens, context, sizes, 5, predecessor=predecessor
    )


def warm(capacity: int) -> ContextIndex:
    """One replica that holds x y z."""
    index = ContextIndex()
    index.set_replicas([ReplicaInfo(ReplicaId("r"), 1, capacity)])
    index.plan([request("first", "x", "y", "z")], 0.0)
    index.hear(Settled(RequestId("first"), 0, ok=True), 0.0)
    return index


def names(steps: list[Step]) -> list[str]:
    return [step.request_id for step in steps]


WINDOW = [
    request("cold", "a", "b"),
    request("one", "x", "c", "d"),
    request("cousin", "e", "f"),
    request("three", "z", "y", "x"),
    request("sibling", "b", "a"),
]


def test_a_window_that_pushes_out_what_is_held_goes_held_first_and_cold_siblings_together() -> None:
    index = warm(capacity=1500)
    steps = index.plan(WINDOW, 1.0)
    assert names(steps) == ["three", "one", "cold", "sibling", "cousin"]
    index.check()


def test_a_window_that_fits_is_planned_as_it_came_and_sent_siblings_together() -> None:
    steps = warm(capacity=1_000_000).plan(WINDOW, 1.0)
    assert names(steps) == ["cold", "sibling", "one", "three", "cousin"]


def test_a_later_turn_counts_what_is_held_of_its_conversation() -> None:
    index = warm(capacity=600)
    turns = [request("new", "x"), request("turn", "q", head="h2", before="first")]
    assert names(index.plan(turns, 1.0)) == ["turn", "new"]


def test_followers_never_overtake_the_request_that_brings_their_prefix() -> None:
    index = warm(capacity=1500)
    steps = index.plan(WINDOW, 1.0)
    sent: list[tuple[BlockId, ...]] = [(BlockId("x"), BlockId("y"), BlockId("z"))]
    for step in steps:
        counted = max(0, step.reused_tokens - 10) // SIZE
        assert not counted or any(one[:counted] == step.context[:counted] for one in sent)
        sent.append(step.context)
