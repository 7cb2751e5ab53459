"""The real index before real models of prefix caches, one request at a time; faults on demand."""

from __future__ import annotations

from collections.abc import Sequence

from cp_ray.core.index import ContextIndex
from cp_ray.core.pages import Piece
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import (
    BlockId,
    EvictionReport,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Routed,
    Settled,
)

PAGE = 16


class SmallFleet:
    """Faults: deaf: reports are lost. lying: replicas hold less than they say. divert: spill."""

    def __init__(self, replicas: int, cache_tokens: int | None) -> None:
        self.index = ContextIndex()
        self.names = [ReplicaId(f"r{number}") for number in range(replicas)]
        self.caches = {name: PrefixCache(cache_tokens, PAGE) for name in self.names}
        self.index.set_replicas(
            [ReplicaInfo(name, PAGE, cache_tokens or 1 << 30) for name in self.names]
        )
        self.deaf = False
        self.check_every = 1
        self.lying = False
        self.divert: ReplicaId | None = None
        self._seq = dict.fromkeys(self.names, 0)
        self._count = 0
        self.now = 0.0

    def ask(
        self,
        context: Sequence[str],
        size: int = 160,
        *,
        head: str = "h",
        movable: bool = True,
        conversation: str | None = None,
        origins: Sequence[str] = (),
        sizes: Sequence[int] | None = None,
        tail_tokens: int = 20,
    ) -> dict[str, int]:
        """Losses of one request by cause."""
        self._count += 1
        self.now += 1.0
        request = PlanRequest(
            RequestId(f"q{self._count}"),
            HeadId(head),
            32,
            tuple(BlockId(block) for block in context),
            tuple(sizes) if sizes is not None else (size,) * len(context),
            tail_tokens,
            movable=movable,
            conversation=conversation,
            origins=tuple(hash(origin) for origin in origins),
        )
        return self.send(request)

    def send(self, request: PlanRequest) -> dict[str, int]:
        (step,) = self.index.plan([request], self.now)
        replica = self.divert or step.replica
        assert replica is not None
        sizes = dict(zip(request.context, request.block_tokens, strict=True))
        pieces: list[Piece] = [(request.head, request.head_tokens)]
        pieces += [(block, sizes[block]) for block in step.context]
        pieces.append((request.request_id, request.tail_tokens))
        cache = self.caches[replica]
        cached = cache.admit(request.request_id, pieces)
        assert cached is not None
        self.index.hear(Routed(request.request_id, replica), self.now)
        cache.prefilled(request.request_id)
        self.index.hear(FirstToken(request.request_id), self.now)
        cache.release(request.request_id)
        held = cached + 64 * PAGE if self.lying else cached
        self.index.hear(Settled(request.request_id, cached, ok=True, held_tokens=held), self.now)
        evictions = cache.take_evictions()
        if evictions and not self.deaf:
            self.index.apply(EvictionReport(replica, 0, self._seq[replica], tuple(evictions)))
            self._seq[replica] += 1
        if self._count % self.check_every == 0:
            self.index.check()
        losses = self.index.losses.of(request.request_id)
        assert losses is not None
        assert sum(losses.values()) == _total(request) - cached
        return losses

    def lose_cache(self, replica: ReplicaId) -> None:
        """The engine drops everything and nobody is told."""
        self.caches[replica].clear()
        self.caches[replica].take_evictions()


def _total(request: PlanRequest) -> int:
    return request.head_tokens + sum(request.block_tokens) + request.tail_tokens
