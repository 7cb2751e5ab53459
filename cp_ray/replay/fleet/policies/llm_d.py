"""`llm_d`: llm-d's scorers: precise prefix (weight 3), queue (2), KV utilisation (2)."""

from __future__ import annotations

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView

PREFIX, QUEUE, KV = 3.0, 2.0, 2.0


class LlmD(OneByOne):
    """Each scorer gives 0 to 1; the queue's is relative to the longest and shortest of now."""

    def place(self, live: Live, view: FleetView, _now: float, /) -> int:
        """Highest weighted sum."""
        held = view.held(live.pieces)
        longest, shortest = max(view.waiting), min(view.waiting)
        span = longest - shortest
        total = max(live.prompt_tokens, 1)
        capacity = view.capacity_tokens or 1 << 62
        return self.least(
            [
                -(
                    PREFIX * held[at] / total
                    + QUEUE * ((longest - view.waiting[at]) / span if span else 1.0)
                    + KV * max(0.0, 1.0 - view.context_tokens[at] / capacity)
                )
                for at in range(view.replicas)
            ]
        )
