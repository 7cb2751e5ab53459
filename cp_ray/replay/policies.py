"""Policies of `bench reuse`: in which order requests go, and their blocks within.

none: as they came. frequency: the offline reference, every block by how many requests have it,
requests in lexicographic order of that (an FP-tree's order). paper: Algorithms 1, 2 and 5 online.
online: what serving does, exact search and windows held first. offline: our construction over the
whole trace (core/merging.py), depth first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from cp_ray.core.dedup import deduplicate
from cp_ray.core.index import ContextIndex
from cp_ray.core.limits import Limits
from cp_ray.core.merging import THOROUGH, merge, steps
from cp_ray.core.scheduling import schedule
from cp_ray.core.types import (
    BlockId,
    Context,
    Eviction,
    EvictionReport,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
)
from cp_ray.progress import watched
from cp_ray.replay.trace import TraceRequest

_REPLICA = ReplicaId("replay")
_HEAD = HeadId("replay")
_NO_LIMIT = 1 << 62


Held = Callable[[TraceRequest], int]
"""Leading tokens of a prompt that the cache has now."""


class Sent(msgspec.Struct, frozen=True):
    """A request with its blocks as they go to the engine.

    context: a permutation of its own, less those `repeated`, which the conversation holds already
    and which are only referred to. after: goes when that request's prefill is done.
    """

    request: TraceRequest
    context: Context
    repeated: Context = ()
    after: RequestId | None = None


class Policy(Protocol):
    """Orders one window after the other, and hears what became of it.

    plans: whether it orders or schedules ahead, so that followers can be held for their leader.
    by_capacity: whether `arrange` depends on the size of the cache.
    """

    plans: bool
    by_capacity: bool

    def arrange(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """The whole trace as it shall arrive: offline policies change it, others do not.

        A fresh policy may be given an earlier one's answer, so it leaves nothing behind in self.
        """

    def take(
        self, waiting: deque[TraceRequest], count: int, held: Held, /
    ) -> Sequence[TraceRequest]:
        """Remove the next window, at most `count` requests, from those that wait."""

    def plan(self, window: Sequence[TraceRequest]) -> list[Sent]:
        """Requests of one window, in the order of sending."""

    def settled(self, sent: Sent, cached_tokens: int) -> None:
        """The request ended; the cache held so many leading tokens of it."""

    def evicted(self, evictions: Sequence[Eviction]) -> None:
        """The cache lost pages of these requests."""


class AsTheyCame:
    """Policy `none`."""

    plans = False
    by_capacity = True

    def arrange(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """No change."""
        return list(requests)

    def take(
        self, waiting: deque[TraceRequest], count: int, _held: Held, /
    ) -> Sequence[TraceRequest]:
        """First come, first served."""
        return [waiting.popleft() for _ in range(min(count, len(waiting)))]

    def plan(self, window: Sequence[TraceRequest]) -> list[Sent]:
        """No change."""
        return [Sent(request, request.context) for request in window]

    def settled(self, sent: Sent, cached_tokens: int) -> None:
        """Nothing to learn."""

    def evicted(self, evictions: Sequence[Eviction]) -> None:
        """Nothing to learn."""


class Frequency(AsTheyCame):
    """Policy `frequency`: sees the whole trace before the first request goes."""

    plans = True
    by_capacity = False

    def arrange(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """Each context by falling frequency, then requests so that equal prefixes meet."""
        count = Counter(block for request in requests for block in request.context)
        # Ties by id, numbers as numbers: the published figures depend on it in the third digit.
        by_rank = sorted(count, key=lambda block: (-count[block], len(block), block))
        rank = {block: place for place, block in enumerate(by_rank)}
        keyed = []
        for request in requests:
            context = request.context
            if request.movable:
                context = tuple(sorted(context, key=rank.__getitem__))
            keyed.append(([rank[block] for block in context], request.reordered(context)))
        keyed.sort(key=lambda pair: pair[0])
        return [request for _, request in keyed]


class Offline(AsTheyCame):
    """Policy `offline`: sees the whole trace before the first request goes."""

    plans = True
    by_capacity = False

    def __init__(self, moves_per_context: int = THOROUGH, limits: Limits | None = None) -> None:
        self._moves = moves_per_context
        self._limits = limits or Limits()

    def arrange(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """Blocks and requests as `merge` orders them."""
        tokens: dict[BlockId, int] = {}
        for request in requests:
            tokens.update(zip(request.context, request.block_tokens, strict=True))
        contexts = [request.context for request in requests]
        with watched("offline order", steps(len(contexts), self._moves)) as done:
            merged = merge(contexts, tokens, self._moves, done=done)
        moved = []
        for position in merged.sequence:
            request = requests[position]
            context = request.context
            if request.movable:
                context = self._limits.hold(context, merged.contexts[position])
            moved.append(request.reordered(context))
        return moved


class Indexed(AsTheyCame):
    """Policies `paper` and `online`: one ContextIndex in front of one replica."""

    plans = True

    def __init__(
        self,
        search: Literal["paper", "exact"],
        capacity_tokens: int | None,
        limits: Limits | None = None,
    ) -> None:
        self._index = ContextIndex(search=search, max_records=_NO_LIMIT, limits=limits)
        self._by_branch = search == "paper"
        self._index.set_replicas([ReplicaInfo(_REPLICA, 1, capacity_tokens or _NO_LIMIT)])
        self._now = 0.0
        self._seq = 0

    def plan(self, window: Sequence[TraceRequest]) -> list[Sent]:
        """Order each context behind what the replica holds; `paper` then schedules the window.

        Blocks that the conversation's earlier turns hold are left out (Algorithm 3).
        """
        self._now += 1.0
        asked = {request.request_id: request for request in window}
        steps = self._index.plan([_plan_request(request) for request in window], self._now)
        if self._by_branch:
            steps = [step for group in schedule(steps) for step in group]
        return [
            Sent(asked[step.request_id], step.context, _repeated(asked[step.request_id]))
            for step in steps
        ]

    def settled(self, sent: Sent, cached_tokens: int) -> None:
        """Free its load, and count the prediction against the cache."""
        request_id = sent.request.request_id
        self._index.hear(FirstToken(request_id), self._now)
        self._index.hear(Settled(request_id, cached_tokens, ok=True), self._now)

    def evicted(self, evictions: Sequence[Eviction]) -> None:
        """Forget what is no longer cached."""
        self._index.apply(EvictionReport(_REPLICA, 0, self._seq, tuple(evictions)))
        self._seq += 1


def _repeated(request: TraceRequest) -> Context:
    if request.history is None:
        return ()
    return deduplicate(request.context, request.history.seen).repeated


def _plan_request(request: TraceRequest) -> PlanRequest:
    """A later turn's head is its own, and extends the prompt of the turn before."""
    history = request.history
    lengths = request.lengths
    repeated = _repeated(request)
    new = tuple(block for block in request.context if block not in repeated)
    return PlanRequest(
        request_id=request.request_id,
        head=HeadId(f"after {history.predecessor}") if history else _HEAD,
        head_tokens=history.tokens if history else 0,
        context=new,
        block_tokens=tuple(lengths[block] for block in new),
        tail_tokens=request.question_tokens,
        movable=request.movable,
        predecessor=history.predecessor if history else None,
    )


POLICIES: dict[str, Callable[[int | None], Policy]] = {
    "none": lambda _: AsTheyCame(),
    "frequency": lambda _: Frequency(),
    "paper": lambda capacity: Indexed("paper", capacity),
    "offline": lambda _: Offline(),
    "online": lambda capacity: Indexed("exact", capacity),
}
"""Name to maker; the argument is the cache's capacity in tokens, None = without limit. The
baselines that no index serves are in registry.py."""
