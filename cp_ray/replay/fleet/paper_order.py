"""`--order paper`: the paper's Algorithms 1 to 3 in front of a rival that keeps the order given.

One index for the whole fleet, as the authors put theirs in front of one engine: it hears the
evictions of every replica, and does not know which of them holds what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cp_ray.core.dedup import deduplicate
from cp_ray.core.index import ContextIndex
from cp_ray.core.types import (
    Eviction,
    EvictionReport,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    Settled,
)
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import Router
from cp_ray.replay.fleet.view import FleetView

_ALL = ReplicaId("fleet")
_NO_LIMIT = 1 << 62


class PaperOrder:
    """Reorders, then lets `router` place."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._index = ContextIndex(search="paper", max_records=_NO_LIMIT)
        self._index.set_replicas([ReplicaInfo(_ALL, 1, _NO_LIMIT)])
        self._seq = 0

    def route(self, window: Sequence[Live], view: FleetView, now: float) -> Iterator[Live]:
        """In order of arrival; movable contexts only."""
        for live in window:
            drop_repeated(live)
        asked = [plan_request(live) for live in window]
        for live, step in zip(window, self._index.plan(asked, now), strict=True):
            live.order(step.context, live.repeated)
        yield from self._router.route(window, view, now)

    def first_token(self, live: Live, now: float) -> None:
        """Pass on."""
        self._index.hear(FirstToken(live.request_id), now)
        self._router.first_token(live, now)

    def ended(self, live: Live, now: float) -> None:
        """Pass on."""
        self._index.hear(Settled(live.request_id, live.cached, ok=True), now)
        self._router.ended(live, now)

    def evicted(self, replica: int, evictions: Sequence[Eviction], /) -> None:
        """Whoever lost it, the order is no longer worth following."""
        self._index.apply(EvictionReport(_ALL, 0, self._seq, tuple(evictions)))
        self._seq += 1
        self._router.evicted(replica, evictions)


def drop_repeated(live: Live) -> None:
    """Algorithm 3: what the conversation's prompt holds already is only referred to."""
    if live.history is not None:
        split = deduplicate(live.job.request.context, live.history.seen)
        live.order(split.new, split.repeated)


def plan_request(live: Live) -> PlanRequest:
    """What an index is asked. A later turn's head is its own, and extends the turn before."""
    request = live.job.request
    lengths = request.lengths
    history = live.history
    earlier = history.pieces if history else live.job.head
    head = f"after {history.predecessor}" if history else repr([key for key, _ in earlier])
    return PlanRequest(
        request_id=live.request_id,
        head=HeadId(head),
        head_tokens=sum(tokens for _, tokens in earlier),
        context=live.context,
        block_tokens=tuple(lengths[block] for block in live.context),
        tail_tokens=live.prompt_tokens
        - sum(tokens for _, tokens in earlier)
        - sum(lengths[block] for block in live.context),
        movable=request.movable,
        predecessor=history.predecessor if history else None,
    )
