"""Watches one request from arrival to end: metrics, one log line, and a story for the index."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cp_ray import metrics
from cp_ray.core.story import Outcome, Story
from cp_ray.core.types import PlanRequest, ReplicaId, Step
from cp_ray.metrics import Metrics
from cp_ray.router.request_trace import RequestTrace
from cp_ray.tracing import Tracer
from cp_ray.workers.engine import Chunk

_log = logging.getLogger("ray.serve")


class Observer:
    """One per Router. tell: takes each story; must not block."""

    def __init__(
        self,
        app: str = "default",
        tell: Callable[[Story], None] | None = None,
        clock: Callable[[], float] = time.time,
        tracer: Tracer | None = None,
    ) -> None:
        self.metrics = Metrics(app)
        self.tell = tell
        self.clock = clock
        self.tracer = tracer or Tracer()

    def begin(
        self, tenant: str, traceparent: str | None = None, began: float | None = None
    ) -> Watch:
        """A request arrived. traceparent: its client's. began: as Watch has it."""
        return Watch(self, tenant, traceparent, began)

    def waiting(self, requests: int) -> None:
        """So many requests have no first token yet."""
        self.metrics.set(metrics.QUEUED, requests)


class Watch:
    """One request. `planned`, `issued`, `first`, `ended`, in this order; `ended` counts once."""

    def __init__(
        self,
        observer: Observer,
        tenant: str,
        traceparent: str | None = None,
        began: float | None = None,
    ) -> None:
        """began: when its body was read, by `time.perf_counter`; default: now."""
        self._trace = RequestTrace(observer.tracer, traceparent)
        self._observer = observer
        self._tenant = tenant
        self._at = observer.clock()
        self._began = time.perf_counter() if began is None else began
        self._plan: PlanRequest | None = None
        self._step: Step | None = None
        self._repeated = 0
        self._routed_ms: float | None = None
        self._prepared_s = 0.0
        self._planned_s = 0.0
        self._issued_s = 0.0
        self._ttft_s = 0.0
        self._ended = False

    def planning(self, plan: PlanRequest) -> PlanRequest:
        """It asks the index: the request as the index shall get it."""
        self._prepared_s = time.perf_counter() - self._began
        return self._trace.planning(plan)

    def routed(self, milliseconds: float) -> None:
        """A Router planned it before, in so long since it had the body read."""
        self._routed_ms = milliseconds

    def sending(self) -> str | None:
        """It goes to a replica: the traceparent it takes along."""
        return self._trace.sending()

    def planned(self, plan: PlanRequest, step: Step | None, repeated: int) -> None:
        """It has a plan, or goes without. repeated: blocks that pointers stand for."""
        self._trace.planned(plan, step)
        self._plan, self._step, self._repeated = plan, step, repeated
        self._planned_s = time.perf_counter() - self._began

    def issued(self) -> None:
        """Its engine call is out; only the first one counts."""
        if not self._issued_s:
            self._issued_s = time.perf_counter() - self._began

    def timing(self) -> dict[str, float]:
        """Milliseconds from the body read: what an explained answer tells.

        prepared: cut and counted. planned: the index has answered (as prepared, where it was not
        asked). issued: the engine was called. first_token: it came. On the direct data plane these
        are the replica's, and routed is what the Router took before it.
        """
        stages = {
            "prepared": self._prepared_s or self._planned_s,
            "planned": self._planned_s,
            "issued": self._issued_s,
            "first_token": self._ttft_s,
        }
        timing = {name: round(1000 * seconds, 3) for name, seconds in stages.items()}
        return timing if self._routed_ms is None else {"routed": self._routed_ms, **timing}

    def first(self) -> None:
        """Its first token came."""
        self._trace.first()
        self._ttft_s = time.perf_counter() - self._began

    def broke(self, error: BaseException) -> None:
        """Its replica failed on it; `ended` follows."""
        self._trace.broke(error)

    def failed(self, error: BaseException) -> None:
        """It came to nothing before its first token, or was refused."""
        self._trace.failed(error)

    def ended(self, outcome: Outcome, replica: str | None, reason: str, last: Chunk | None) -> None:
        """It is over. last: of the chunks that came."""
        if self._ended or self._plan is None:
            return
        self._ended = True
        story = Story(
            self._plan.request_id,
            self._tenant,
            self._at,
            self._plan,
            self._step,
            ReplicaId(replica) if replica is not None else None,
            reason,
            outcome,
            self._repeated,
            self._planned_s,
            self._ttft_s,
            time.perf_counter() - self._began,
            last.cached_tokens if last is not None else 0,
            last.completion_tokens if last is not None else 0,
            last.prompt_tokens if last is not None else _planned_tokens(self._plan),
        )
        self._trace.ended(story)
        _count(self._observer.metrics, story)
        if self._issued_s:
            self._observer.metrics.observe(metrics.ISSUE_TIME, self._issued_s)
        _write(story)
        if self._observer.tell is not None:
            self._observer.tell(story)


def _planned_tokens(plan: PlanRequest) -> int:
    return plan.head_tokens + sum(plan.block_tokens) + plan.tail_tokens


def _count(to: Metrics, story: Story) -> None:
    to.add(metrics.REQUESTS, 1, outcome=story.outcome, reason=story.reason)
    to.observe(metrics.PLAN_TIME, story.planned_s)
    to.add(metrics.REPEATED_BLOCKS, story.repeated)
    if not story.ttft_s:
        return
    to.add(metrics.PROMPT_TOKENS, story.prompt_tokens)
    to.add(metrics.CACHED_TOKENS, story.cached_tokens)
    to.add(metrics.OUTPUT_TOKENS, story.output_tokens)
    to.observe(metrics.TTFT, story.ttft_s, reason=story.reason)
    if story.step is not None:
        to.add(metrics.PREDICTED_TOKENS, story.step.reused_tokens)
        if story.step.estimated_ttft_s:
            to.observe(metrics.ESTIMATED_TTFT, story.step.estimated_ttft_s)


def _write(story: Story) -> None:
    """With `logging_config: {encoding: JSON}` each of these is a field of its own."""
    facts = {
        "cp_request_id": str(story.request_id),
        "cp_tenant": story.tenant,
        "cp_outcome": story.outcome,
        "cp_replica": story.replica,
        "cp_reason": story.reason,
        "cp_prompt_tokens": story.prompt_tokens,
        "cp_cached_tokens": story.cached_tokens,
        "cp_planned_ms": round(story.planned_s * 1000, 1),
        "cp_ttft_ms": round(story.ttft_s * 1000, 1),
        "cp_total_ms": round(story.total_s * 1000, 1),
    }
    _log.info(
        "request %s: %s on %s (%s), %d of %d tokens cached, first token after %.0f ms",
        story.request_id,
        story.outcome,
        story.replica,
        story.reason,
        story.cached_tokens,
        story.prompt_tokens,
        story.ttft_s * 1000,
        extra={**facts, "log_to_stderr": False},
    )
