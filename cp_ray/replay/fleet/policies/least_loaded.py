"""`least_loaded`: fewest running requests; `power_of_two`: of two at random (Ray Serve's own)."""

from __future__ import annotations

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView


class LeastLoaded(OneByOne):
    """By requests that have not ended."""

    def place(self, _live: Live, view: FleetView, _now: float, /) -> int:
        """Ties at random."""
        return self.least(view.running)


class PowerOfTwo(OneByOne):
    """Ray Serve's default router."""

    def place(self, _live: Live, view: FleetView, _now: float, /) -> int:
        """The less loaded of two."""
        pair = self.random.sample(range(view.replicas), min(2, view.replicas))
        return min(pair, key=view.running.__getitem__)
