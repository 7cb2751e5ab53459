"""`est_ttft`: least prefill ahead plus own missing tokens (Mooncake's scheduler, one tier)."""

from __future__ import annotations

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView


class EstTtft(OneByOne):
    """Myopic: each request for itself."""

    def place(self, live: Live, view: FleetView, _now: float, /) -> int:
        """Ties to fewer running."""
        held = view.held(live.pieces)
        cost = [
            (view.prefill_tokens[at] - held[at], view.running[at]) for at in range(view.replicas)
        ]
        low = min(cost)
        return self.random.choice([at for at in range(view.replicas) if cost[at] == low])
