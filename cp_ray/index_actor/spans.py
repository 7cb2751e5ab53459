"""What the index tells of a plan in a trace."""

from __future__ import annotations

from collections.abc import Sequence

from cp_ray.core.types import PlanRequest, Step
from cp_ray.tracing import NOTHING, Span


def told(spans: Sequence[Span], requests: Sequence[PlanRequest], steps: Sequence[Step]) -> None:
    """Close the spans of a window. spans: one for each request, in their order."""
    if all(span is NOTHING for span in spans):
        return
    planned = {step.request_id: step for step in steps}
    for span, request in zip(spans, requests, strict=True):
        step = planned[request.request_id]
        span.set(
            request_id=request.request_id,
            window_requests=len(requests),
            blocks=len(request.context),
            reordered=step.context != request.context,
            planned_replica=step.replica,
            reason=step.reason,
            predicted_cached_tokens=step.reused_tokens,
            estimated_ttft_s=step.estimated_ttft_s,
        )
        span.end()
