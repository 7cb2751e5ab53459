"""Placement: the replica of least estimated wait and prefill, in seconds.

`wait + prefill x price`: prefill delays others the more, the longer the queues are. Unpriced, an
idle replica looks as good as waiting for the holder, siblings scatter, and the fleet drowns in its
own recomputation (docs/decisions/0004). And it delays more of them where many wait: long prompts
keep to themselves (docs/decisions/0029).
"""

from __future__ import annotations

import math
from typing import Final, final

from cp_ray.core.types import ReplicaId
from cp_ray.errors import InvariantError

MEMORY_S: Final = 30.0
MIN_SPAN_S: Final = 5.0
"""Work planned within the first seconds is spread over as many."""
UTILISATION_CEILING: Final = 0.95
PRICE_FLOOR: Final = 1.1
"""Work has a price on an idle fleet, too: a second copy of a prefix pushes something else out."""
PRICE_CEILING: Final = 30.0
"""No request waits longer than its own prefill times this and BEHIND, and what answers count
for, beyond the shortest queue. Lower, an overloaded fleet finds less (docs/decisions/0033)."""
BEHIND: Final = 0.1
"""Of those that wait on a replica, the share that tells how many will come behind ours, wait for
its prefill, and could not as well have gone elsewhere (docs/decisions/0029)."""
FIRST_CLAIM: Final = 1.25
"""Seconds of ours that a second is worth of those who came before us (docs/decisions/0030)."""
NEAR: Final = 0.05
"""Estimates are no better than that; wider, holders lose their requests (benchmarks/LOG.md)."""
USUAL: Final = 0.01
"""Weight of one request in the mean prefill."""
ANSWER_STEPS: Final = 3
"""Steps that an answer running there counts for: our answer slows it, and is slowed by it. All of
its steps would send requests away from what they share (benchmarks/LOG.md, Chain-of-Agents)."""


@final
class Option:
    """One replica's offer. wait_s: prefill ahead of us, and for room. own_s: our prefill.

    beside_s: what our answer and those that run there take from each other, as far as it counts.
    new: tokens of ours that it lacks. running: requests there, waiting: those of them without a
    first token. assigned: requests ever planned there; breaks ties evenly. late_s: by which those
    ahead get late together who would end in a step that we fill up. step_tokens: as `ReplicaInfo`.
    A plain class: one is made for each request and replica, and compiled faster than a struct.
    """

    __slots__ = (
        "assigned",
        "beside_s",
        "late_s",
        "new",
        "own_s",
        "replica",
        "running",
        "step_tokens",
        "wait_s",
        "waiting",
    )

    def __init__(
        self,
        replica: ReplicaId,
        wait_s: float,
        own_s: float,
        running: int,
        assigned: int,
        *,
        beside_s: float = 0.0,
        waiting: int = 0,
        late_s: float = 0.0,
        step_tokens: int = 0,
        new: int = 0,
    ) -> None:
        self.replica = replica
        self.wait_s = wait_s
        self.own_s = own_s
        self.running = running
        self.assigned = assigned
        self.beside_s = beside_s
        self.waiting = waiting
        self.late_s = late_s
        self.step_tokens = step_tokens
        self.new = new

    def cost_s(self, price: float) -> float:
        """Seconds of everybody's wait. price: of a second of prefill, wherever it is done."""
        own = self.own_s * (price + BEHIND * self.waiting)
        return self.wait_s + own + self.beside_s + FIRST_CLAIM * self.late_s

    def before(self, other: Option) -> bool:
        """Whether it wins a tie: fewer waiting, fewer ever assigned, fewer running, by name."""
        if self.waiting != other.waiting:
            return self.waiting < other.waiting
        if self.assigned != other.assigned:
            return self.assigned < other.assigned
        if self.running != other.running:
            return self.running < other.running
        return self.replica < other.replica


class Congestion:
    """How much others suffer from a second of prefill.

    While some replica is free, work done elsewhere delays nobody. When none is, a second of it
    delays all who come until the queue has drained: behind q prompts at utilisation rho these are
    q rho / (1 - rho) (busy period of a pooled queue). q is the shortest wait, in usual prefills.
    rho is the work planned, not the share of busy replicas: one that waits for room has none.
    """

    def __init__(self, fixed_price: float | None = None) -> None:
        """fixed_price: in place of what is learnt."""
        self._fixed_price = fixed_price
        self._usual_s = 0.0
        self._planned_s = 0.0
        self._weight = 0.0
        self._at: float | None = None

    def planned(self, own_s: float, replicas: int, now: float) -> None:
        """A request planned at `now` will be prefilled for so long, by one of so many replicas."""
        kept = math.exp(-max(0.0, now - self._at) / MEMORY_S) if self._at is not None else 1.0
        self._at = now
        self._planned_s = self._planned_s * kept + own_s / replicas
        self._weight = self._weight * kept + (1.0 - kept) * MEMORY_S
        self._usual_s += (own_s - self._usual_s) * (USUAL if self._usual_s else 1.0)

    @property
    def usual_s(self) -> float:
        """Mean prefill of about the last hundred requests; 0 before the first."""
        return self._usual_s

    @property
    def utilisation(self) -> float:
        """Seconds of prefill planned per second and replica, over about half a minute."""
        return self._planned_s / max(self._weight, MIN_SPAN_S)

    def price(self, shortest_wait_s: float, /) -> float:
        """Seconds of everybody's wait per second of prefill; 1 to PRICE_CEILING.

        shortest_wait_s: of all replicas, right now, this window's reservations included.
        """
        if self._fixed_price is not None:
            return self._fixed_price
        if not self._usual_s:
            return PRICE_FLOOR
        rho = min(self.utilisation, UTILISATION_CEILING)
        return min(PRICE_FLOOR + rho / (1.0 - rho) * shortest_wait_s / self._usual_s, PRICE_CEILING)


def shortest_wait_s(options: list[Option]) -> float:
    """Of all that is offered."""
    least = math.inf
    for option in options:
        least = min(option.wait_s, least)
    return least


def choose(options: list[Option], price: float, usual_s: float) -> Option:
    """The cheapest option; near ties to fewer waiting, then as `Option.before`.

    Near, as estimates are: else one that seems a little faster would get all that is new. What
    may be wrong is a wait, and a replica's speed; that it lacks more of this very prompt is known.
    And a prompt far longer than usual_s, the usual prefill, makes no wait less certain
    (docs/decisions/0033).
    """
    cheapest: Option | None = None
    least = math.inf
    for option in options:
        cost = option.cost_s(price)
        if cost < least or cheapest is None:
            least, cheapest = cost, option
    if cheapest is None:
        raise InvariantError("placement: no replica was offered")
    least_own = cheapest.own_s * price
    wait = least - least_own
    doubt = NEAR * (wait + min(least_own, usual_s * price))
    best = cheapest
    for option in options:
        cost = option.cost_s(price)
        if cost > least * (1.0 + NEAR) or cost - option.own_s * price > wait + doubt:
            continue
        if option.new > cheapest.new and cost > least + doubt:
            continue
        if option.before(best):
            best = option
    return best
