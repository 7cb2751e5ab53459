"""How many replicas: enough that the estimated time to first token keeps its target.

What a request waits for depends on how busy the replicas are. For a share `b` of their time that
goes into prefill, a single server of random arrivals lets a prompt of `s` seconds wait
`s b / (1 - b)` (M/M/1); real traffic waits some multiple of that, and the multiple is measured.
So the wait with another number of replicas can be told beforehand: growth goes to where the target
holds, and shrinking only to where half of the wait that the target leaves would do. Between
the two nothing changes, so a constant load, noise and all, never makes a fleet go down and up; up
and then down only after replicas that were busy nearly all the time, when no wait tells how many
more it takes.
"""

from __future__ import annotations

import math

import msgspec

LEAST_BUDGET = 1.0
"""Wait that is always allowed, in prefills: no number of replicas makes a prompt itself shorter."""
MOST_BUSY = 0.9
"""Beyond it the wait is a queue that grows; its length says nothing of what replicas would do."""
BUNCHED = (0.25, 4.0)
"""Bounds of the measured multiple of M/M/1's wait."""
SHRINK_WAIT = 0.5
"""Share of the allowed wait that a smaller fleet may have."""
SHRINK_SLOTS = 0.75
"""Share of a smaller fleet's places that may be taken."""
MOST_GROWTH = 2
"""A decision at most doubles the fleet: what is measured under a flood is no measure."""


class Demand(msgspec.Struct, frozen=True):
    """What a fleet was asked, means over a while.

    prefill_s, ttft_s: of one request, estimated when it was planned, seconds. ongoing: requests
    running or waiting. queued: those of them that no replica had a place for.
    """

    requests_per_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    ongoing: float = 0.0
    queued: float = 0.0


class Goal(msgspec.Struct, frozen=True):
    """What is wanted. slots: requests that one replica takes at a time."""

    target_ttft_s: float
    least: int
    most: int
    slots: int

    def clip(self, replicas: int) -> int:
        """The nearest number that is allowed."""
        return max(self.least, min(self.most, replicas))


class Fleet(msgspec.Struct, frozen=True):
    """running: replicas that answer. target: those there should be. since: when `running` began."""

    running: int
    target: int
    since: float


def needed(demand: Demand, replicas: int, goal: Goal) -> int:
    """Replicas for this demand, measured while `replicas` (1 or more) served it."""
    if demand.requests_per_s <= 0 or demand.prefill_s <= 0:
        return goal.clip(replicas if demand.ongoing > 0 else goal.least)
    prefill = demand.prefill_s
    load = demand.requests_per_s * prefill
    budget = max(goal.target_ttft_s - prefill, LEAST_BUDGET * prefill)
    in_line = demand.queued / demand.requests_per_s  # Little's law
    wait = max(demand.ttft_s - prefill, in_line)
    busy = min(load / replicas, MOST_BUSY)
    usual = prefill * busy / (1 - busy)
    low, high = BUNCHED
    bunched = high if wait >= high * usual else max(wait / usual, low)

    def busy_at(wait_s: float) -> float:
        return wait_s / (wait_s + bunched * prefill)

    if wait > budget:
        wanted = max(
            math.ceil(load / busy_at(budget)),
            math.ceil(demand.ongoing / goal.slots),
            replicas + 1,
        )
        return goal.clip(min(wanted, MOST_GROWTH * replicas))
    enough = max(
        math.ceil(load / busy_at(SHRINK_WAIT * budget)),
        math.ceil(demand.ongoing / (SHRINK_SLOTS * goal.slots)),
    )
    return goal.clip(min(enough, replicas))


def decide(demand: Demand, fleet: Fleet, goal: Goal, now: float, settle_s: float) -> int:
    """How many replicas there should be, `now`.

    settle_s: what `demand` is a mean over. Until a fleet has been that long as it is, demand tells
    of another one, and nothing changes. Replicas that are still to come are waited for, but not
    when fewer will do than already run.
    """
    if fleet.running == 0 or now - fleet.since < settle_s:
        return goal.clip(fleet.target)
    wanted = needed(demand, fleet.running, goal)
    if fleet.running < fleet.target and wanted >= fleet.running:
        return goal.clip(fleet.target)
    if fleet.running > fleet.target and wanted <= fleet.running:  # some are on their way out
        return goal.clip(fleet.target)
    return wanted
