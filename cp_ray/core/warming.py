"""What replicas that joined have yet to prefill: offered only while they have nothing to do.

The index knows ids and lengths. Whoever sent a request that begins with a prefix has its tokens: so
prefixes are offered, and whoever can send one claims it. A claim is planned as a request.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from cp_ray.core.index import ContextIndex
from cp_ray.core.prewarm import WarmPrefix, warm_prefixes
from cp_ray.core.types import PlanRequest, ReplicaId, ReplicaInfo, RequestId, Step

OFFERED = 16
"""Prefixes of a replica that are offered at a time: some of them is sure to be in reach."""
PATIENCE = 32
"""Offers of one prefix; then nobody has its tokens."""


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """Prefill, on `replica`, the first `tokens` tokens of the prompt of `request`."""

    replica: ReplicaId
    request: RequestId
    tokens: int


class _Due:
    __slots__ = ("offered", "prefix")

    def __init__(self, prefix: WarmPrefix) -> None:
        self.prefix = prefix
        self.offered = 0


class Warming:
    """Owner of what is due. The most used prefix of a replica is offered first."""

    def __init__(self, index: ContextIndex) -> None:
        self._index = index
        self._due: dict[ReplicaId, deque[_Due]] = {}
        self._counters: Counter[str] = Counter()

    def joined(self, joining: Sequence[ReplicaInfo]) -> None:
        """These replicas are live, and empty."""
        replicas = len(self._index.replicas.live)
        for replica, prefixes in warm_prefixes(self._index.memory, joining, replicas).items():
            self._due[replica] = deque(_Due(prefix) for prefix in prefixes)

    def offers(self) -> list[Offer]:
        """For every replica that has nothing to prefill, what it should, the most used first."""
        found = []
        for replica, due in list(self._due.items()):
            if replica not in self._index.replicas.live or not due:
                del self._due[replica]
                continue
            if self._index.load.ledger.prefill_tokens(replica):
                continue
            for one in [due[at] for at in range(min(OFFERED, len(due)))]:
                one.offered += 1
                if one.offered > PATIENCE:
                    due.remove(one)
                    self._counters["warm_prefixes_out_of_reach"] += 1
                else:
                    found.append(Offer(replica, one.prefix.request, one.prefix.tokens))
        return found

    def claim(self, offer: Offer, name: RequestId, now: float) -> Step | None:
        """The plan for an offer, under the name that its prompt is sent by; None: too late."""
        due = self._due.get(offer.replica, ())
        for one in due:
            prefix = one.prefix
            if (prefix.request, prefix.tokens) == (offer.request, offer.tokens):
                break
        else:
            return None
        self._due[offer.replica].remove(one)
        usable = offer.replica in self._index.replicas.usable
        if not usable or self._index.load.ledger.prefill_tokens(offer.replica):
            return None
        request = PlanRequest(
            name,
            prefix.head,
            prefix.head_tokens,
            prefix.context,
            prefix.block_tokens,
            0,
            movable=False,
        )
        (step,) = self._index.plan([request], now, only=offer.replica)
        self._counters["warmed"] += 1
        self._counters["warmed_tokens"] += prefix.tokens - step.reused_tokens
        return step

    def counters(self) -> dict[str, int]:
        """warmed: prompts. warmed_tokens: prefilled by them. Both since the start."""
        return dict(self._counters)
