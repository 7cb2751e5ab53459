"""`cp_ray`: the product's own ContextIndex, asked and told as the index actor is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import (
    Eviction,
    EvictionReport,
    FirstToken,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    Settled,
    Step,
)
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.paper_order import drop_repeated, plan_request
from cp_ray.replay.fleet.view import FleetView


class CpRay:
    """The view is not used: the index knows only what serving tells it."""

    def __init__(
        self, replicas: int, page_size: int, capacity_tokens: int, step_tokens: int = 0
    ) -> None:
        self.index = ContextIndex(max_records=1 << 62)
        self.names = [ReplicaId(f"r{at:02}") for at in range(replicas)]
        self._at = {name: at for at, name in enumerate(self.names)}
        self.index.set_replicas(
            [ReplicaInfo(name, page_size, capacity_tokens, step_tokens) for name in self.names]
        )
        self._seq = [0] * replicas

    def route(self, window: Sequence[Live], _view: FleetView, now: float) -> Iterator[Live]:
        """One plan for the window."""
        asked = {live.request_id: live for live in window}
        for live in window:
            drop_repeated(live)
        steps = self.index.plan([self.asked(live) for live in window], now)
        for step in steps:
            live = asked[step.request_id]
            self.send(live, step)
            yield live

    def asked(self, live: Live) -> PlanRequest:
        """What the index is asked of a request."""
        return plan_request(live)

    def send(self, live: Live, step: Step) -> None:
        """Take the step."""
        live.order(step.context, live.repeated)
        live.replica = self._at[step.replica or self.names[0]]

    def first_token(self, live: Live, now: float) -> None:
        """As the router's call tells it."""
        self.index.hear(FirstToken(live.request_id), now)

    def ended(self, live: Live, now: float) -> None:
        """As the router's call tells it."""
        self.index.hear(
            Settled(live.request_id, live.cached, ok=True, held_tokens=live.cached), now
        )

    def evicted(self, replica: int, evictions: Sequence[Eviction], /) -> None:
        """As the reporter tells it."""
        report = EvictionReport(self.names[replica], 0, self._seq[replica], tuple(evictions))
        self.index.apply(report)
        self._seq[replica] += 1
