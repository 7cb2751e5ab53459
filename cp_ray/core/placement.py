"""Placement: the replica of least estimated wait and prefill, in seconds.

`wait + prefill x price`: prefill delays others the more, the longer the queues are. Unpriced, an
idle replica looks as good as waiting for the holder, siblings scatter, and the fleet drowns in its
own recomputation (docs/decisions/0004).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from cp_ray.core.types import ReplicaId

UTILISATION_MEMORY_S = 30.0
UTILISATION_CEILING = 0.95
PRICE_CEILING = 10.0
"""No request waits longer than its own prefill times this, beyond the shortest queue."""
USUAL = 0.01
"""Weight of one request in the mean prefill."""


class Option(msgspec.Struct, frozen=True):
    """One replica's offer. wait_s: prefill ahead of us. own_s: ours. missing_tokens: ours, too.

    running: requests there. assigned: requests ever planned there; breaks ties evenly.
    """

    replica: ReplicaId
    wait_s: float
    own_s: float
    missing_tokens: int
    running: int
    assigned: int


class Congestion:
    """How much others suffer from a second of prefill.

    A second of work delays all who come before the queue has drained: in a queue of q prompts at
    utilisation rho that is q rho / (1 - rho) of them (M/G/1, mean busy period). q is the fleet's
    mean: others may evade a busy replica, so its own queue would overstate it.
    """

    def __init__(self) -> None:
        self.utilisation = 0.0
        self._usual_s = 0.0
        self._at: float | None = None

    def observe(self, share: float, now: float) -> None:
        """Take the share of busy replicas at time `now`, seconds; never goes back in time."""
        elapsed = max(0.0, now - self._at) if self._at is not None else 0.0
        self._at = now
        weight = 1.0 - math.exp(-elapsed / UTILISATION_MEMORY_S)
        self.utilisation += (share - self.utilisation) * weight

    def planned(self, own_s: float) -> None:
        """A request will be prefilled for so long."""
        self._usual_s += (own_s - self._usual_s) * (USUAL if self._usual_s else 1.0)

    def price(self, mean_wait_s: float) -> float:
        """Seconds of everybody's wait per second of prefill; 1 to PRICE_CEILING.

        mean_wait_s: over the fleet, right now, this window's reservations included.
        """
        if not self._usual_s:
            return 1.0
        rho = min(self.utilisation, UTILISATION_CEILING)
        return min(1.0 + rho / (1.0 - rho) * mean_wait_s / self._usual_s, PRICE_CEILING)


def choose(options: Iterable[Option], price: float) -> Option:
    """The cheapest option; ties to fewer running, then fewer ever assigned, then by name."""
    return min(
        options,
        key=lambda option: (
            option.wait_s + option.own_s * price,
            option.running,
            option.assigned,
            option.replica,
        ),
    )


def choose_unfitted(options: Iterable[Option], prefill_tokens: dict[ReplicaId, int]) -> Option:
    """While no curve is known: least (tokens to prefill) x (requests), which needs no unit.

    Source: LMetric, arXiv 2603.15202. prefill_tokens: planned on each replica before.
    """
    return min(
        options,
        key=lambda option: (
            (prefill_tokens[option.replica] + option.missing_tokens) * (option.running + 1),
            option.assigned,
            option.replica,
        ),
    )
