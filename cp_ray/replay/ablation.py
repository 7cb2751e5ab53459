"""Arms of `--ablate`: a policy without its order, or without its schedule (paper figure 8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

from cp_ray.core.types import Eviction
from cp_ray.replay.policies import Held, Policy, Sent
from cp_ray.replay.trace import TraceRequest

Part = Literal["order", "schedule", "leaders"]
PARTS: tuple[Part, ...] = ("order", "schedule", "leaders")
"""order: of blocks within a context. schedule: of requests. leaders: held followers."""


class Ablated:
    """Everything of `inner` but one part. Without `leaders`, the replay holds nothing back."""

    def __init__(self, inner: Policy, without: Part) -> None:
        self._inner = inner
        self._without = without
        self.plans = inner.plans and without != "leaders"
        self.by_capacity = inner.by_capacity

    def arrange(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """The inner arrangement, its contexts or its sequence undone."""
        arranged = self._inner.arrange(requests)
        if self._without == "order":
            original = {request.request_id: request for request in requests}
            return [
                msgspec.structs.replace(original[request.request_id], movable=False)
                for request in arranged
            ]
        if self._without == "schedule":
            by_id = {request.request_id: request for request in arranged}
            return [by_id[request.request_id] for request in requests]
        return arranged

    def take(
        self, waiting: deque[TraceRequest], count: int, held: Held, /
    ) -> Sequence[TraceRequest]:
        """First come, first served without the schedule."""
        if self._without == "schedule":
            return [waiting.popleft() for _ in range(min(count, len(waiting)))]
        return self._inner.take(waiting, count, held)

    def plan(self, window: Sequence[TraceRequest]) -> list[Sent]:
        """The inner plan, in the window's own sequence without the schedule."""
        sent = self._inner.plan(window)
        if self._without != "schedule":
            return sent
        by_id = {one.request.request_id: one for one in sent}
        return [by_id[request.request_id] for request in window]

    def settled(self, sent: Sent, cached_tokens: int) -> None:
        """Passed on."""
        self._inner.settled(sent, cached_tokens)

    def evicted(self, evictions: Sequence[Eviction]) -> None:
        """Passed on."""
        self._inner.evicted(evictions)
