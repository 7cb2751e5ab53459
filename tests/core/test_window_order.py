"""Which requests of a window are laid out first."""

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
)
from cp_ray.core.window_order import held_first

SIZE = 100


def request(name: str, *blocks: str, head: str = "h", before: str | None = None) -> PlanRequest:
    context = tuple(BlockId(block) for block in blocks)
    predecessor = RequestId(before) if before else None
    head_tokens = 250 if before else 10
    sizes = (SIZE,) * len(context)
    return PlanRequest(
        RequestId(name), HeadId(head), head_tokens, context, sizes, 5, predecessor=predecessor
    )


def warm() -> ContextIndex:
    """One replica that holds x y z."""
    index = ContextIndex()
    index.set_replicas([ReplicaInfo(ReplicaId("r"), 1, 1500)])
    index.plan([request("first", "x", "y", "z")], 0.0)
    index.hear(Settled(RequestId("first"), 0, ok=True), 0.0)
    return index


WINDOW = [
    request("cold", "a", "b"),
    request("one", "x", "c", "d"),
    request("turn", "q", head="h2", before="first"),
    request("cousin", "e", "f"),
    request("three", "z", "y", "x"),
]


def names(capacity: int) -> list[str]:
    held = warm().reuse.most_held
    return [one.request_id for one in held_first(WINDOW, capacity, held)]


def test_a_window_that_pushes_out_what_is_held_goes_held_first() -> None:
    # Of the later turn 250 tokens are held: its conversation so far.
    assert names(1500) == ["three", "turn", "one", "cold", "cousin"]


def test_a_window_that_fits_stays_as_it_came() -> None:
    assert names(1_000_000) == ["cold", "one", "turn", "cousin", "three"]


def test_every_request_of_a_window_comes_back_once() -> None:
    index = warm()
    steps = index.plan(WINDOW, 1.0)
    index.check()
    assert sorted(step.request_id for step in steps) == sorted(one.request_id for one in WINDOW)
