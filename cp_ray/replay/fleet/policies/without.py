"""Arms of `--ablate`: cp_ray without one of its parts, by the same index.

order: blocks stay as given. schedule: requests of a window go in order of arrival, one by one.
joint: the replica is chosen first, by load alone, then the order for it. replication: a request
always waits for the holder of the longest prefix. leaders: nothing here, engines that share
pages as they are allocated need none (docs/decisions/0005).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cp_ray.core.placement import Congestion
from cp_ray.core.types import PlanRequest
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.paper_order import drop_repeated, plan_request
from cp_ray.replay.fleet.policies.cp_ray import CpRay
from cp_ray.replay.fleet.view import FleetView


class WithoutOrder(CpRay):
    """Every request is planned as if its blocks could not be moved."""

    def asked(self, live: Live) -> PlanRequest:
        """The request, fixed."""
        return msgspec.structs.replace(plan_request(live), movable=False)


class WithoutSchedule(CpRay):
    """Every request is a window of its own."""

    def route(self, window: Sequence[Live], view: FleetView, now: float) -> Iterator[Live]:
        """In order of arrival."""
        for live in window:
            yield from super().route([live], view, now)


class WithoutJoint(CpRay):
    """The least loaded replica takes the request; the order follows what it holds."""

    def route(self, window: Sequence[Live], view: FleetView, now: float) -> Iterator[Live]:
        """In order of arrival."""
        for live in window:
            drop_repeated(live)
            least = min(range(view.replicas), key=lambda at: (view.running[at], view.sent[at]))
            (step,) = self.index.plan([self.asked(live)], now, only=self.names[least])
            self.send(live, step)
            yield live


class WithoutReplication(CpRay):
    """A prefix has one home: a second of prefill costs so much that no wait is worth it."""

    def __init__(
        self, replicas: int, page_size: int, capacity_tokens: int, step_tokens: int = 0
    ) -> None:
        super().__init__(replicas, page_size, capacity_tokens, step_tokens)
        self.index.load.congestion = Congestion(fixed_price=1e6)


ARMS: dict[str, type[CpRay]] = {
    "order": WithoutOrder,
    "schedule": WithoutSchedule,
    "joint": WithoutJoint,
    "replication": WithoutReplication,
}
