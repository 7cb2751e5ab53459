"""A small fleet's index, and the steps that tests of it take."""

from __future__ import annotations

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import (
    FirstToken,
    ReplicaId,
    ReplicaInfo,
    Settled,
    Step,
)
from tests.paper.worked_examples import context, request

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
