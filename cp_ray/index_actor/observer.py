"""What the index actor shows: the fleet as JSON, one request explained, metrics, a recording."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

import msgspec

from cp_ray import metrics
from cp_ray.core.explain import explain
from cp_ray.core.fleet_view import Sweep, replicas_of, sweep
from cp_ray.core.index import ContextIndex
from cp_ray.core.story import KEPT, Story, StoryBook
from cp_ray.core.types import RequestId
from cp_ray.index_actor.recording import Recording
from cp_ray.index_actor.report_reader import ReportReader
from cp_ray.metrics import Metrics

EMIT_S = 2.0
SWEEP_S = 30.0
WATCHED_SWEEP_S = 5.0
WATCHED_FOR_S = 15.0
RECENT = 60
SWEEP_PAUSE_S = 0.002
"""Between two steps of a sweep, so that plans go first."""
_log = logging.getLogger("ray.serve")


class Observer:
    """Looks at the index and its reader; changes neither. One event loop."""

    def __init__(
        self, app: str, index: ContextIndex, reader: ReportReader, recording: Recording | None
    ) -> None:
        self._app = app
        self._index = index
        self._reader = reader
        self._recording = recording
        # Of twice as many requests as the index knows there are accounts of loss.
        self._book = StoryBook(min(KEPT, 2 * index.max_records))
        self._metrics = Metrics(app)
        self._swept: Sweep | None = None
        self._swept_at = float("-inf")
        self._asked_at = float("-inf")
        self._emitted: Counter[tuple[str, str]] = Counter()
        self._engines: set[str] = set()

    def tell(self, stories: list[Story]) -> None:
        """Take what became of requests."""
        for story in stories:
            self._book.add(story)
        if self._recording is not None:
            self._recording.write(stories)

    def fill(self) -> tuple[int, int]:
        """Stories held, and the most there can be."""
        return self._book.fill()

    def planned(self, seconds: float) -> None:
        """One window was planned in so many seconds."""
        self._metrics.observe(metrics.INDEX_TIME, seconds)

    def fleet(self, since: float) -> bytes:
        """JSON: replicas, branches, series from `since` on, losses, the last requests."""
        self._asked_at = time.monotonic()
        held = self._swept.held_tokens if self._swept is not None else None
        losses = self._index.losses.sums()
        return msgspec.json.encode(
            {
                "app": self._app,
                "now": time.time(),
                "replicas": replicas_of(self._index, held),
                "branches": self._swept.branches if self._swept is not None else (),
                "series": self._book.moments(since),
                "losses": losses,
                "unexplained_share": losses.unexplained_share(),
                "recent": [_row(story) for story in self._book.last(RECENT)],
                "counters": self._index.counters() | self._reader.counters(),
                "redis_connected": self._reader.connected,
                "report_lag_s": self._reader.lag_s,
            }
        )

    def explain(self, request_id: str) -> tuple[str, bytes] | None:
        """Tenant and JSON of one of the last requests."""
        story = self._book.get(RequestId(request_id))
        if story is None:
            return None
        losses = self._index.losses.of(story.request_id)
        return story.tenant, msgspec.json.encode(explain(story, losses))

    async def run(self) -> None:
        """Write metrics, and sweep now and then, for ever; whatever fails costs no plan."""
        failed = False
        while True:
            await asyncio.sleep(EMIT_S)
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - whatever it is, plans are worth more than what is shown
                if not failed:
                    _log.exception("Metrics and the fleet page are not up to date; plans go on.")
                failed = True
            else:
                failed = False

    async def _look(self) -> None:
        watched = time.monotonic() - self._asked_at < WATCHED_FOR_S
        every = WATCHED_SWEEP_S if watched else SWEEP_S
        if time.monotonic() - self._swept_at >= every:
            await self._sweep()
        self._emit()

    async def _sweep(self) -> None:
        for found in sweep(self._index):
            if found is not None:
                self._swept = found
            await asyncio.sleep(SWEEP_PAUSE_S)
        self._swept_at = time.monotonic()

    def _emit(self) -> None:
        to, index = self._metrics, self._index
        losses = index.losses.sums()
        for cause, tokens in losses.by_cause.items():
            self._count_up(metrics.LOST_TOKENS, tokens, cause=cause)
        self._count_up(metrics.ACCOUNTED_TOKENS, losses.prompt_tokens)
        self._count_up(metrics.BEYOND_BELIEF, losses.beyond_belief)
        counters = index.counters() | self._reader.counters()
        for name, spec in _GAUGES.items():
            to.set(spec, counters.pop(name, 0))
        for name, value in counters.items():
            self._count_up(metrics.EVENTS, value, event=name)
        to.set(metrics.REPORT_LAG, self._reader.lag_s)
        to.set(metrics.REDIS_UP, float(self._reader.connected))
        self._emit_replicas()

    def _emit_replicas(self) -> None:
        to = self._metrics
        held = self._swept.held_tokens if self._swept is not None else {}
        views = replicas_of(self._index, held)
        trust = Counter(view.trust for view in views)
        for state in ("trusted", "suspect", "quarantined", "resyncing"):
            to.set(metrics.REPLICAS, trust[state], trust=state)
        for view in views:
            name = str(view.replica)
            to.set(metrics.REPLICA_WAITING, view.waiting_tokens, engine=name)
            to.set(metrics.REPLICA_RUNNING, view.running, engine=name)
            fill = (view.held_tokens or 0) / max(1, view.capacity_tokens)
            to.set(metrics.REPLICA_FILL, min(1.0, fill), engine=name)
        live = {str(view.replica) for view in views}
        for name in self._engines - live:  # a gauge keeps its last value for ever
            for spec in (metrics.REPLICA_WAITING, metrics.REPLICA_RUNNING, metrics.REPLICA_FILL):
                to.set(spec, 0, engine=name)
        self._engines = live

    def _count_up(self, spec: metrics.Spec, total: float, **tags: str) -> None:
        key = (spec.name, ",".join(tags.values()))
        self._metrics.add(spec, total - self._emitted[key], **tags)
        self._emitted[key] = max(int(total), self._emitted[key])


_GAUGES = {"records": metrics.RECORDS, "heads": metrics.HEADS, "reserved": metrics.RESERVED}


def _row(story: Story) -> dict[str, Any]:
    return {
        "request_id": str(story.request_id),
        "ended": story.at + story.total_s,
        "outcome": story.outcome,
        "replica": story.replica,
        "reason": story.reason,
        "blocks": len(story.plan.context),
        "prompt_tokens": story.prompt_tokens,
        "predicted_tokens": story.step.reused_tokens if story.step is not None else 0,
        "cached_tokens": story.cached_tokens,
        "ttft_s": story.ttft_s,
    }
