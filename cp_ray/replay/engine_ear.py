"""What an engine reports during `cp-ray bench engine`: to the index, and counted."""

from __future__ import annotations

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import Dump, Eviction, EvictionReport, ReplicaId, RequestId

REPLICA = ReplicaId("bench")


class Ear:
    """A CacheListener that numbers what it hears and tells the index at once."""

    def __init__(self) -> None:
        self.index: ContextIndex | None = None
        self.evictions = self.evicted_tokens = self.epochs = 0
        self._epoch = self._seq = 0
        self._left: dict[RequestId, int] = {}

    def follow(self, index: ContextIndex) -> None:
        """Tell another index from here on; it begins with the next epoch."""
        self.index = index
        self.new_epoch()
        self.evictions = self.evicted_tokens = self.epochs = 0

    def sent(self, request: RequestId, tokens: int) -> None:
        """A request has so many tokens to lose."""
        self._left[request] = tokens

    def evicted(self, evictions: list[Eviction]) -> None:
        """See CacheListener."""
        self.evictions += len(evictions)
        for eviction in evictions:
            before = self._left.pop(eviction.request_id, 0)
            self.evicted_tokens += max(before - eviction.tokens_left, 0)
            if eviction.tokens_left:
                self._left[eviction.request_id] = eviction.tokens_left
        self._tell(EvictionReport(REPLICA, self._epoch, self._seq, tuple(evictions)))

    def new_epoch(self) -> None:
        """See CacheListener."""
        self._epoch, self._seq = self._epoch + 1, 0
        self.epochs += 1
        self._left.clear()
        self._tell(EvictionReport(REPLICA, self._epoch, 0, ()))

    def dump(self, held: dict[RequestId, int]) -> None:
        """Tell all that is held, under the next number."""
        self._tell(Dump(REPLICA, self._epoch, self._seq, held))

    def _tell(self, message: EvictionReport | Dump) -> None:
        self._seq += 1
        if self.index is not None:
            self.index.apply(message)
