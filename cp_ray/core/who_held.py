"""Who had how much of a prompt when it was planned: what its losses are judged by later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, final

from cp_ray.core.node import ContextNode
from cp_ray.core.record import Record
from cp_ray.core.replicas import ReplicaTable
from cp_ray.core.types import PlanRequest, RequestId


class Known(Protocol):
    """What the accounts look up in the index."""

    @property
    def records(self) -> Mapping[RequestId, Record]:
        """What is remembered of each request."""

    @property
    def replicas(self) -> ReplicaTable:
        """Who is live, and believed."""


@final
class Held:
    """Who had how much of a prompt, in the order planned, when it was planned. Tokens of prompt.

    own: (holder bit, tokens) of the replica it was planned to. runs: (tokens, holder bits of
    others) of shrinking prefixes, head included. before: (tokens, holder bit) of the request whose
    prompt the head extends. believed: bits of the replicas that count. Never changed.
    """

    __slots__ = ("before", "believed", "own", "runs")

    def __init__(
        self,
        own: tuple[int, int],
        runs: list[tuple[int, int]],
        before: tuple[int, int],
        believed: int,
    ) -> None:
        self.own = own
        self.runs = runs
        self.before = before
        self.believed = believed

    def by(self, bits: int) -> int:
        """Tokens that the best of `bits` had."""
        bits &= self.believed
        best = self.before[0] if self.before[1] & bits else 0
        if self.own[0] & bits:
            best = max(best, self.own[1])
        for tokens, holders in self.runs:
            if holders & bits:
                return max(best, tokens)
        return best


def who_held(
    index: Known, request: PlanRequest, record: Record, node: ContextNode, own_tokens: int
) -> Held:
    """Of a request just put at `node`. own_tokens: what the replica it was planned to had."""
    replicas = index.replicas
    own = 1 << replicas.bit(record.replica)
    before = (0, 0)
    earlier = index.records.get(request.predecessor) if request.predecessor else None
    if earlier is not None and earlier.replica in replicas.live:
        before = min(earlier.tokens_left, request.head_tokens), 1 << replicas.bit(earlier.replica)
    runs: list[tuple[int, int]] = []
    at: ContextNode | None = node
    while at is not None:
        others = at.holders & ~own
        if others:
            runs.append((request.head_tokens + record.tokens_of(at.depth), others))
        at = at.parent
    return Held((own, own_tokens), runs, before, replicas.mask)
