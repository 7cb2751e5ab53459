"""`cp_ray` on a fleet that grows, with or without pre-warming of the replicas that join."""

from __future__ import annotations

from collections.abc import Iterator

from cp_ray.core.pages import Piece
from cp_ray.core.types import RequestId, Step
from cp_ray.core.warming import Offer, Warming
from cp_ray.replay.fleet.job import Job, Live
from cp_ray.replay.fleet.policies.cp_ray import CpRay
from cp_ray.replay.trace import TraceRequest


class Growing(CpRay):
    """Begins with `first` replicas; `join` adds the others. warm: whether they are pre-warmed."""

    def __init__(
        self,
        replicas: int,
        page_size: int,
        capacity_tokens: int,
        step_tokens: int = 0,
        *,
        first: int,
        warm: bool,
    ) -> None:
        super().__init__(replicas, page_size, capacity_tokens, step_tokens)
        self._all = list(self.index.replicas.live.values())
        self._first = first
        self._warming = Warming(self.index) if warm else None
        self._sent: dict[RequestId, Live] = {}
        self._number = 0
        self.index.set_replicas(self._all[:first])

    def send(self, live: Live, step: Step) -> None:
        """Keep what was sent, as a router does."""
        super().send(live, step)
        if self._warming is not None:
            self._sent[live.request_id] = live

    def join(self) -> None:
        """The other replicas can take requests."""
        self.index.set_replicas(self._all)
        if self._warming is not None:
            self._warming.joined(self._all[self._first :])

    def spare(self, now: float) -> Iterator[Live]:
        """What replicas that have nothing to prefill should: at most one prompt each."""
        if self._warming is None:
            return
        given = set()
        for offer in self._warming.offers():
            if offer.replica not in given:
                given.add(offer.replica)
                self._number += 1
                name = RequestId(f"warm-{self._number}")
                if self._warming.claim(offer, name, now) is not None:
                    yield self._prompt(name, offer, now)

    def _prompt(self, name: RequestId, offer: Offer, now: float) -> Live:
        """The beginning of a prompt that was sent: head, and whole blocks."""
        sent = self._sent[offer.request]
        head = sent.history.pieces if sent.history else sent.job.head
        left = offer.tokens - sum(tokens for _, tokens in head)
        lengths = sent.job.request.lengths
        blocks = []
        for block in sent.context:
            if left <= 0:
                break
            blocks.append(block)
            left -= lengths[block]
        sizes = tuple(lengths[block] for block in blocks)
        request = TraceRequest(name, "", tuple(blocks), sizes, 1, movable=False)
        pieces: tuple[Piece, ...] = head
        live = Live(Job(request, 1, pieces), now, None)
        live.replica = self._at[offer.replica]
        return live
