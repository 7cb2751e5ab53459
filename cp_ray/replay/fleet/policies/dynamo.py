"""`dynamo`: NVIDIA Dynamo's KV router, default weights (overlap 1, temperature 0), blocks of 16.

cost = max(prefill under way + prompt - cached, 0) + blocks of running requests + prompt, in blocks.
"""

from __future__ import annotations

from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView

BLOCK = 16


class Dynamo(OneByOne):
    """By the engines' own events, here without lag."""

    def place(self, live: Live, view: FleetView, _now: float, /) -> int:
        """Least cost."""
        held = view.held(live.pieces)
        return self.least(
            [
                (
                    max(view.prefill_tokens[at] + live.prompt_tokens - held[at], 0)
                    + view.context_tokens[at]
                    + live.prompt_tokens
                )
                // BLOCK
                for at in range(view.replicas)
            ]
        )
