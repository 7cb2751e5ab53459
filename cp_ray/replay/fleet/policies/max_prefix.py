"""`max_prefix`: the longest cached prefix wins, whatever the load (production-stack's kvaware)."""

from __future__ import annotations

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView


class MaxPrefix(OneByOne):
    """Below its threshold of matched tokens production-stack balances by load."""

    def place(self, live: Live, view: FleetView, _now: float, /) -> int:
        """Among equals the least loaded."""
        held = view.held(live.pieces)
        most = max(held)
        if not most:
            return self.least(view.running)
        return self.least(
            [view.running[at] if held[at] == most else float("inf") for at in range(view.replicas)]
        )
