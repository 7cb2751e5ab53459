"""`preble`: E2 of Preble: exploit the longest prefix when most is cached, else the cheapest GPU.

Costs in tokens of prefill: load of the last 3 minutes, what would be evicted, and the miss.
"""

from __future__ import annotations

from collections import deque

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView

WINDOW_S = 180.0
REBALANCE = 1.5


class Preble(OneByOne):
    """Load: missing tokens sent in the window. The heaviest passes on when 1.5 x the lightest.

    The eviction term needs Preble's histogram of each GPU. Where caches are full it is about the
    miss itself, the same for all GPUs, and is left out.
    """

    def __init__(self, seed: int, replicas: int) -> None:
        super().__init__(seed)
        self._sent: deque[tuple[float, int, int]] = deque()
        self._load = [0] * replicas

    def place(self, live: Live, view: FleetView, now: float, /) -> int:
        """Exploit or explore."""
        while self._sent and self._sent[0][0] < now - WINDOW_S:
            _, at, tokens = self._sent.popleft()
            self._load[at] -= tokens
        held = view.held(live.pieces)
        most = max(held)
        if most > live.prompt_tokens - most:
            candidates = [at for at in range(view.replicas) if held[at] == most]
            chosen = min(candidates, key=self._load.__getitem__)
            if self._load[chosen] > REBALANCE * min(self._load) > 0:
                chosen = self.least(self._load)
        else:
            chosen = self.least([self._load[at] - held[at] for at in range(view.replicas)])
        missing = live.prompt_tokens - held[chosen]
        self._sent.append((now, chosen, missing))
        self._load[chosen] += missing
        return chosen
