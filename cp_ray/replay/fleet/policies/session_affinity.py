"""`session_affinity`: a conversation stays on its replica, by rendezvous hash."""

from __future__ import annotations

from hashlib import blake2b

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView


class SessionAffinity(OneByOne):
    """A request without a conversation is one of its own."""

    def place(self, live: Live, view: FleetView, _now: float, /) -> int:
        """Load is not looked at."""
        key = live.job.request.conversation or str(live.request_id)
        return max(range(view.replicas), key=lambda at: blake2b(f"{key}|{at}".encode()).digest())
