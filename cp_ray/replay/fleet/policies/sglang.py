"""`sglang`: cache_aware of SGLang's gateway, defaults of its command line (.3, 64, 1.5)."""

from __future__ import annotations

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.policies.own_history import OwnHistory
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView

CACHE_THRESHOLD = 0.3
ABSOLUTE = 64
RELATIVE = 1.5


class Sglang(OneByOne):
    """Shortest queue while the fleet is out of balance, else the longest prefix it has sent."""

    def __init__(self, seed: int, replicas: int) -> None:
        super().__init__(seed)
        self._history = OwnHistory(replicas)

    def place(self, live: Live, view: FleetView, _now: float, /) -> int:
        """Below the threshold the least loaded (1.13; older releases: the smallest tree)."""
        most, least = max(view.running), min(view.running)
        if not (most - least > ABSOLUTE and most > RELATIVE * least):
            matched, holders = self._history.match(live.pieces)
            if holders and matched > CACHE_THRESHOLD * live.prompt_tokens:
                chosen = min(holders, key=lambda at: (view.running[at], self.random.random()))
                self.tied = [at for at in holders if view.running[at] == view.running[chosen]]
                return chosen
        return self.least(view.running)

    def placed(self, live: Live, /) -> None:
        """Into the tree."""
        self._history.insert(live.pieces, live.replica)
