"""`lmetric`: tokens to prefill times requests (arXiv 2603.15202): a product needs no weights."""

from __future__ import annotations

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView


class LMetric(OneByOne):
    """(prefill that waits + own missing tokens) x (running requests + 1)."""

    def place(self, live: Live, view: FleetView, _now: float, /) -> int:
        """Least product."""
        held = view.held(live.pieces)
        return self.least(
            [
                (view.prefill_tokens[at] + live.prompt_tokens - held[at]) * (view.running[at] + 1)
                for at in range(view.replicas)
            ]
        )
