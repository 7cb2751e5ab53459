"""`paper`: Algorithms 1, 2 and 5 with the card's routing: a branch stays where it was begun.

Groups by first search-path element; a group goes to the replica that holds it, else to the least
loaded. Nothing bounds a branch's load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cp_ray.core.index import ContextIndex
from cp_ray.core.scheduling import schedule
from cp_ray.core.types import (
    Eviction,
    EvictionReport,
    FirstToken,
    ReplicaId,
    ReplicaInfo,
    Settled,
)
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.paper_order import drop_repeated, plan_request
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView

_ALL = ReplicaId("fleet")
_NO_LIMIT = 1 << 62


class Paper(OneByOne):
    """One index for the fleet; a branch's replica is remembered while the branch lives."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._index = ContextIndex(search="paper", max_records=_NO_LIMIT)
        self._index.set_replicas([ReplicaInfo(_ALL, 1, _NO_LIMIT)])
        self._home: dict[str, int] = {}
        self._seq = 0

    def route(self, window: Sequence[Live], view: FleetView, now: float) -> Iterator[Live]:
        """Group by group."""
        for live in window:
            drop_repeated(live)
        asked = {live.request_id: live for live in window}
        steps = self._index.plan([plan_request(live) for live in window], now)
        for group in schedule(steps):
            for step in group:
                live = asked[step.request_id]
                live.order(step.context, live.repeated)
                home = self._home.get(step.branch) if step.reason == "holder" else None
                live.replica = self.least(view.running) if home is None else home
                if step.branch:
                    self._home[step.branch] = live.replica
                yield live

    def first_token(self, live: Live, now: float) -> None:
        """Free its load."""
        self._index.hear(FirstToken(live.request_id), now)

    def ended(self, live: Live, now: float) -> None:
        """It is resident."""
        self._index.hear(Settled(live.request_id, live.cached, ok=True), now)

    def evicted(self, _replica: int, evictions: Sequence[Eviction], /) -> None:
        """Forget what is no longer cached."""
        self._index.apply(EvictionReport(_ALL, 0, self._seq, tuple(evictions)))
        self._seq += 1
