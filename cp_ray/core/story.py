"""Stories: what became of each request, in ids and token counts; and sums of them over time."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Literal

import msgspec

from cp_ray.core.types import PlanRequest, ReplicaId, RequestId, Step

BUCKET_S = 5.0
BUCKETS = 180
"""A quarter of an hour."""
KEPT = 4096
SAMPLES = 512
"""Times kept of one bucket, for its quantiles."""

Outcome = Literal["ok", "failed", "left"]
"""left: the client went away before the end."""


class Story(msgspec.Struct, frozen=True, array_like=True):
    """One request from arrival to end. No text, no name that a client gave.

    at: arrival, seconds since 1970. step: None when nothing was planned. reason: as answers tell
    it, with "spill". repeated: blocks that a pointer stood for. Times in seconds from arrival;
    0 where it did not come so far. cached_tokens, output_tokens, prompt_tokens: by the engine's
    count; the last with the order annotation, and by the plan's where the engine said nothing.
    """

    request_id: RequestId
    tenant: str
    at: float
    plan: PlanRequest
    step: Step | None
    replica: ReplicaId | None
    reason: str
    outcome: Outcome
    repeated: int
    planned_s: float
    ttft_s: float
    total_s: float
    cached_tokens: int
    output_tokens: int
    prompt_tokens: int


class Bucket(msgspec.Struct):
    """Sums of the requests that ended in one span of BUCKET_S. start: seconds since 1970."""

    start: float
    requests: int = 0
    failed: int = 0
    spilled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_tokens: int = 0
    ttft_s: array[float] = msgspec.field(default_factory=lambda: array("f"))


class Moment(msgspec.Struct, frozen=True):
    """A bucket as it is shown. Ratios of prompt tokens; None where nothing ended."""

    start: float
    requests: int
    failed: int
    spilled: int
    hit_ratio: float | None
    predicted_ratio: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None


class StoryBook:
    """Owner of the last stories and of a quarter of an hour of sums; bounded."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._stories: OrderedDict[RequestId, Story] = OrderedDict()
        self._buckets: deque[Bucket] = deque(maxlen=BUCKETS)

    def add(self, story: Story) -> None:
        """Take a request that ended."""
        self._stories[story.request_id] = story
        if len(self._stories) > self._kept:
            self._stories.popitem(last=False)
        bucket = self._bucket(story.at + story.total_s)
        bucket.requests += 1
        bucket.failed += story.outcome == "failed"
        bucket.spilled += story.reason == "spill"
        if story.outcome == "failed":
            return
        bucket.prompt_tokens += story.prompt_tokens
        bucket.cached_tokens += story.cached_tokens
        bucket.predicted_tokens += story.step.reused_tokens if story.step is not None else 0
        if len(bucket.ttft_s) < SAMPLES:
            bucket.ttft_s.append(story.ttft_s)

    def fill(self) -> tuple[int, int]:
        """Stories held, and the most there can be."""
        return len(self._stories), self._kept

    def get(self, request: RequestId) -> Story | None:
        """One of the last stories."""
        return self._stories.get(request)

    def last(self, count: int) -> list[Story]:
        """The newest, newest first."""
        found: list[Story] = []
        for request in reversed(self._stories):
            if len(found) == count:
                break
            found.append(self._stories[request])
        return found

    def moments(self, since: float = 0.0) -> list[Moment]:
        """The buckets that begin at `since` or later, oldest first."""
        return [_moment(bucket) for bucket in self._buckets if bucket.start >= since]

    def _bucket(self, moment: float) -> Bucket:
        start = moment // BUCKET_S * BUCKET_S
        if not self._buckets or start > self._buckets[-1].start:
            self._buckets.append(Bucket(start))
        for bucket in reversed(self._buckets):  # hosts' clocks differ, and stories come late
            if bucket.start <= start:
                return bucket
        return self._buckets[0]


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the values lie; None of none."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)]


def _moment(bucket: Bucket) -> Moment:
    tokens = bucket.prompt_tokens
    return Moment(
        bucket.start,
        bucket.requests,
        bucket.failed,
        bucket.spilled,
        bucket.cached_tokens / tokens if tokens else None,
        bucket.predicted_tokens / tokens if tokens else None,
        quantile(bucket.ttft_s, 0.5),
        quantile(bucket.ttft_s, 0.99),
    )
