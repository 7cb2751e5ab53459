"""Placement: the replica of least estimated wait and prefill, in tokens of prefill.

`wait + missing * price`, price = 1 + rho / (1 - rho): prefill costs more the busier the fleet is.
Unpriced, an idle replica looks as good as waiting for the holder, siblings scatter, and the
fleet drowns in its own recomputation (docs/decisions/0004).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from cp_ray.core.types import ReplicaId

UTILISATION_MEMORY_S = 30.0
UTILISATION_CEILING = 0.9
"""Bounds the price at 10: one replica is never preferred by more than ten prompts of wait."""


class Option(msgspec.Struct, frozen=True):
    """One replica's offer. wait_tokens: prefill ahead of us. missing_tokens: ours to prefill.

    running: requests there. assigned: requests ever planned there; breaks ties evenly.
    """

    replica: ReplicaId
    wait_tokens: int
    missing_tokens: int
    running: int
    assigned: int


class Utilisation:
    """Share of replicas with prefill to do, averaged over about half a minute."""

    def __init__(self) -> None:
        self.value = 0.0
        self._at: float | None = None

    def observe(self, share: float, now: float) -> None:
        """Take the share of busy replicas at time `now`, seconds; never goes back in time."""
        elapsed = max(0.0, now - self._at) if self._at is not None else 0.0
        self._at = now
        self.value += (share - self.value) * (1.0 - math.exp(-elapsed / UTILISATION_MEMORY_S))

    def price(self, share: float) -> float:
        """What one token of prefill costs the fleet, in tokens of wait; at least 1.

        share: busy replicas right now, this window's reservations included: a burst on an idle
        fleet must see its own first request, or siblings scatter before the average knows.
        """
        rho = min(max(self.value, share), UTILISATION_CEILING)
        return 1.0 + rho / (1.0 - rho)


def choose(options: Iterable[Option], price: float) -> Option:
    """The cheapest option; ties to fewer running, then fewer ever assigned, then by name."""
    return min(
        options,
        key=lambda option: (
            option.wait_tokens + option.missing_tokens * price,
            option.running,
            option.assigned,
            option.replica,
        ),
    )
