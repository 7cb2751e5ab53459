"""`round_robin`: every replica in turn."""

from __future__ import annotations

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView


class RoundRobin(OneByOne):
    """Begins anywhere."""

    _next = 0

    def place(self, _live: Live, view: FleetView, _now: float, /) -> int:
        """The next one."""
        self._next += 1
        return self._next % view.replicas
