"""`cp_ray` on a fleet that grows, with or without pre-warming of the replicas that join."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from cp_ray.core.pages import Piece
from cp_ray.core.prewarm import WarmPrefix, warm_prefixes
from cp_ray.core.types import HeadId, PlanRequest, RequestId
from cp_ray.replay.fleet.job import Job, Live
from cp_ray.replay.fleet.policies.cp_ray import CpRay
from cp_ray.replay.trace import TraceRequest


class Growing(CpRay):
    """Begins with `first` replicas; `join` adds the others. warm: whether they are pre-warmed."""

    def __init__(
        self, replicas: int, page_size: int, capacity_tokens: int, *, first: int, warm: bool
    ) -> None:
        super().__init__(replicas, page_size, capacity_tokens)
        self._all = list(self.index.replicas.live.values())
        self._first = first
        self._warm = warm
        self._heads: dict[HeadId, tuple[Piece, ...]] = {}
        self._due: dict[int, deque[WarmPrefix]] = {}
        self._number = 0
        self.index.set_replicas(self._all[:first])

    def asked(self, live: Live) -> PlanRequest:
        """Remember the texts of heads, which a prompt to warm begins with."""
        request = super().asked(live)
        self._heads[request.head] = live.history.pieces if live.history else live.job.head
        return request

    def join(self) -> None:
        """The other replicas can take requests."""
        self.index.set_replicas(self._all)
        if self._warm:
            joining = self._all[self._first :]
            warm = warm_prefixes(self.index.memory, joining, len(self._all))
            self._due = {self._at[name]: deque(prefixes) for name, prefixes in warm.items()}

    def spare(self, now: float) -> Iterator[Live]:
        """What replicas that have nothing to prefill should: at most one prompt each."""
        for at, prefixes in list(self._due.items()):
            if self.index.load.ledger.prefill_tokens(self.names[at]):
                continue
            if not prefixes:
                del self._due[at]
                continue
            yield self._prompt(prefixes.popleft(), at, now)

    def _prompt(self, prefix: WarmPrefix, at: int, now: float) -> Live:
        self._number += 1
        name = RequestId(f"warm-{self._number}")
        planned = PlanRequest(
            name, prefix.head, prefix.head_tokens, prefix.context, prefix.block_tokens, 1, False
        )
        self.index.plan([planned], now, only=self.names[at])
        request = TraceRequest(name, "", prefix.context, prefix.block_tokens, 1, movable=False)
        live = Live(Job(request, 1, self._heads[prefix.head]), now, None)
        live.replica = at
        return live
