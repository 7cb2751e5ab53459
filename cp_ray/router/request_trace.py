"""One request's spans in the Router: the whole of it, its plan, and its way to the first token."""

from __future__ import annotations

import msgspec

from cp_ray.core.story import Story
from cp_ray.core.types import PlanRequest, Step
from cp_ray.tracing import NOTHING, Tracer


class RequestTrace:
    """`planning`, `planned`, `sending`, `first`, `ended`; or `failed` anywhere between."""

    def __init__(self, tracer: Tracer, traceparent: str | None) -> None:
        """traceparent: of the client, if it sent one; one that is wrong counts as none."""
        self._tracer = tracer
        self._whole = tracer.start("request", traceparent, "server")
        self._plan = self._dispatch = NOTHING
        self._step: Step | None = None

    def planning(self, plan: PlanRequest) -> PlanRequest:
        """The index continues the trace."""
        parent = self._whole.traceparent
        if parent is None:
            return plan
        self._plan = self._tracer.start("plan", parent, "client")
        return msgspec.structs.replace(plan, traceparent=self._plan.traceparent)

    def planned(self, plan: PlanRequest, step: Step | None) -> None:
        """The plan came, or there is none."""
        self._step = step
        tokens = plan.head_tokens + sum(plan.block_tokens) + plan.tail_tokens
        self._whole.set(request_id=plan.request_id, blocks=len(plan.context), prompt_tokens=tokens)
        if step is not None:
            self._plan.set(
                request_id=plan.request_id,
                planned_replica=step.replica,
                reason=step.reason,
                predicted_cached_tokens=step.reused_tokens,
            )
        self._plan.end()

    def sending(self) -> str | None:
        """The replica continues the trace with this."""
        parent = self._whole.traceparent
        if parent is None:
            return None
        self._dispatch = self._tracer.start("dispatch", parent, "client")
        if self._step is not None:
            self._dispatch.set(request_id=self._step.request_id, planned_replica=self._step.replica)
        return self._dispatch.traceparent

    def first(self) -> None:
        """Its first token came."""
        self._dispatch.end()

    def broke(self, error: BaseException) -> None:
        """Its replica failed on it; `ended` follows."""
        self._dispatch.fail(error)
        self._whole.fail(error)

    def failed(self, error: BaseException) -> None:
        """It was refused, failed, or its client went away, before its first token."""
        for span in (self._plan, self._dispatch, self._whole):
            span.fail(error)
            span.end()

    def ended(self, story: Story) -> None:
        """It is over, well or not."""
        step = story.step
        self._dispatch.end()
        self._whole.set(
            outcome=story.outcome,
            reason=story.reason,
            replica=story.replica,
            prompt_tokens=story.prompt_tokens,
            cached_tokens=story.cached_tokens,
            predicted_cached_tokens=step.reused_tokens if step is not None else None,
            output_tokens=story.output_tokens,
            ttft_s=story.ttft_s or None,
        )
        self._whole.end()
