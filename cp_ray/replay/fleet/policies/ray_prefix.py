"""`ray_prefix`: Ray Serve's PrefixCacheAffinityRouter, defaults (imbalance: never, match .1)."""

from __future__ import annotations

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.policies.own_history import OwnHistory
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView

MATCH_RATE = 0.1


class RayPrefix(OneByOne):
    """The replicas of the longest prefix sent; what matches little goes to the smallest tree.

    Among several, Serve takes the shortest queue.
    """

    def __init__(self, seed: int, replicas: int) -> None:
        super().__init__(seed)
        self._history = OwnHistory(replicas)

    def place(self, live: Live, view: FleetView, _now: float, /) -> int:
        """Load counts only among candidates."""
        matched, holders = self._history.match(live.pieces)
        if holders and matched >= MATCH_RATE * live.prompt_tokens:
            return self.least_of(sorted(holders), view.running)
        smallest = min(self._history.size)
        candidates = [at for at, size in enumerate(self._history.size) if size == smallest]
        return self.least_of(candidates, view.running)

    def placed(self, live: Live, /) -> None:
        """Into the tree."""
        self._history.insert(live.pieces, live.replica)
