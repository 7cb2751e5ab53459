"""The order in which requests that came together are planned and sent: what is held most, first.

What a cache holds now is what the window's other requests will push out, so whoever finds most of
it goes first, and each is planned behind those before it. Those that find nothing come last, as
they came, siblings together. Any other sorting of a window after it was planned breaks this,
because followers overtake their leaders (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cp_ray.core.memory import Memory
from cp_ray.core.search import Candidate
from cp_ray.core.types import BlockId, PlanRequest, Step

Candidates = Callable[[PlanRequest, dict[BlockId, int]], list[Candidate]]


def plan_in_turn(
    requests: Sequence[PlanRequest],
    memory: Memory,
    candidates: Candidates,
    plan: Callable[[PlanRequest], Step],
) -> list[Step]:
    """Plan all, most held first, on a tie as they came; the steps in the order of sending."""
    held = {request.request_id: _held(request, memory, candidates) for request in requests}
    in_turn = sorted(requests, key=lambda request: held[request.request_id], reverse=True)
    steps = [plan(request) for request in in_turn]
    warm = [step for step in steps if held[step.request_id]]
    cold: dict[str, list[Step]] = {}
    for step in steps[len(warm) :]:
        cold.setdefault(step.branch, []).append(step)
    return warm + [step for siblings in cold.values() for step in siblings]


def _held(request: PlanRequest, memory: Memory, candidates: Candidates) -> int:
    """Tokens of blocks, or of earlier turns, that some replica should have now."""
    tree = memory.trees.get(request.head)
    if tree is not None and tree.root.holders:
        tokens = dict(zip(request.context, request.block_tokens, strict=True))
        return max((one.tokens for one in candidates(request, tokens) if one.holders), default=0)
    before = memory.records.get(request.predecessor) if request.predecessor else None
    return min(before.tokens_left, request.head_tokens) if before is not None else 0
