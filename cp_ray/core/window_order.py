"""The order in which requests that came together are planned and sent.

What a cache holds now is what a large window's other requests will push out, so whoever finds most
of it goes first, and each is planned behind those before it. A window that fits beside what is
held pushes nothing out: it is planned as it came, because neighbours in time resemble each other.
Those that find nothing, and all of a window that fits, are sent siblings together. Any other
sorting after planning breaks this: followers overtake their leaders (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cp_ray.core.memory import Memory
from cp_ray.core.search import Candidate
from cp_ray.core.types import BlockId, PlanRequest, RequestId, Step

Candidates = Callable[[PlanRequest, dict[BlockId, int]], list[Candidate]]
TIGHT = 0.5
"""Share of all caches together from which a window pushes out what its own requests would find."""


def plan_in_turn(
    requests: Sequence[PlanRequest],
    capacity_tokens: int,
    held: Callable[[PlanRequest], int],
    plan: Callable[[PlanRequest], Step],
) -> list[Step]:
    """Plan all, most held first where the window is tight; the steps in the order of sending.

    capacity_tokens: of all live caches together. held: leading tokens that some replica has.
    """
    window = sum(one.head_tokens + sum(one.block_tokens) + one.tail_tokens for one in requests)
    finds: dict[RequestId, int] = {}
    if window >= TIGHT * capacity_tokens:
        finds = {request.request_id: held(request) for request in requests}
        requests = sorted(requests, key=lambda one: finds[one.request_id], reverse=True)
    steps = [plan(request) for request in requests]
    warm = [step for step in steps if finds.get(step.request_id)]
    cold: dict[str, list[Step]] = {}
    for step in steps[len(warm) :]:
        cold.setdefault(step.branch, []).append(step)
    return warm + [step for siblings in cold.values() for step in siblings]


def held_tokens(request: PlanRequest, memory: Memory, candidates: Candidates) -> int:
    """Tokens of blocks, or of earlier turns, that some replica should have now."""
    tree = memory.trees.get(request.head)
    if tree is not None and tree.root.holders:
        tokens = dict(zip(request.context, request.block_tokens, strict=True))
        return max((one.tokens for one in candidates(request, tokens) if one.holders), default=0)
    before = memory.records.get(request.predecessor) if request.predecessor else None
    return min(before.tokens_left, request.head_tokens) if before is not None else 0
