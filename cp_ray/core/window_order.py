"""Which requests of a window are laid out first: where it is tight, those that find most.

What a cache holds now is what a large window's other requests will push out. A window that fits
beside what is held pushes nothing out: it is taken as it came, because neighbours in time resemble
each other (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cp_ray.core.types import PlanRequest, RequestId

TIGHT = 0.5
"""Share of all caches together from which a window pushes out what its own requests would find."""


def held_first(
    requests: Sequence[PlanRequest], capacity_tokens: int, held: Callable[[PlanRequest], int]
) -> Sequence[PlanRequest]:
    """By falling tokens held where the window is tight, on a tie as they came; else as they came.

    capacity_tokens: of all live caches together. held: leading tokens that some replica has.
    """
    window = sum(one.head_tokens + sum(one.block_tokens) + one.tail_tokens for one in requests)
    if window < TIGHT * capacity_tokens:
        return requests
    finds: dict[RequestId, int] = {request.request_id: held(request) for request in requests}
    return sorted(requests, key=lambda one: finds[one.request_id], reverse=True)
