"""What replicas have yet to prefill ahead of clients: offered only while they have nothing to do.

That is what the fleet is asked most, on a replica that joins; and what conversations have said, on
those that stay when a replica leaves. The index knows ids and lengths. Whoever sent a request that
begins with a prefix has its tokens: so prefixes are offered, and whoever can send one claims it. A
claim is planned as a request; that of a conversation's last turn under the turn's own name, by
which the next turn looks for it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Container, Iterable, Sequence

import msgspec

from cp_ray.core.index import ContextIndex
from cp_ray.core.prewarm import SHARE, WarmPrefix, warm_prefixes
from cp_ray.core.record import State
from cp_ray.core.types import PlanRequest, ReplicaId, ReplicaInfo, RequestId, Step

OFFERED = 16
"""Prefixes of a replica that are offered at a time: some of them is sure to be in reach."""
PATIENCE = 32
"""Offers of one prefix; then nobody has its tokens."""


HANDED_OVER = 1024
"""Conversations that are looked after: those spoken in last."""


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """Prefill, on `replica`, the first `tokens` tokens of the prompt of `request`.

    again: under that request's own name.
    """

    replica: ReplicaId
    request: RequestId
    tokens: int
    again: bool = False


class _Due:
    __slots__ = ("offered", "prefix", "talk")

    def __init__(self, prefix: WarmPrefix, talk: str | None = None) -> None:
        self.prefix = prefix
        self.talk = talk
        self.offered = 0


class Warming:
    """Owner of what is due. The most used prefix of a replica is offered first."""

    def __init__(self, index: ContextIndex) -> None:
        self._index = index
        self._due: dict[ReplicaId, deque[_Due]] = {}
        self._talks: OrderedDict[str, RequestId] = OrderedDict()
        self._counters: Counter[str] = Counter()

    def asked(self, requests: Iterable[PlanRequest]) -> None:
        """These were planned: the last turns of their conversations."""
        for request in requests:
            if request.conversation is not None:
                self._talks[request.conversation] = request.request_id
                self._talks.move_to_end(request.conversation)
                if len(self._talks) > HANDED_OVER:
                    self._talks.popitem(last=False)

    def leaving(self, replicas: Container[ReplicaId]) -> list[tuple[str, WarmPrefix]]:
        """The conversations there, newest first: call it before the index forgets the replicas."""
        found = []
        for talk, request in reversed(self._talks.items()):
            record = self._index.records.get(request)
            if record is None or record.replica not in replicas:
                continue
            node = self._index.memory.trees[record.head].node_of[request]
            if record.state is State.RESIDENT and node.depth == record.blocks:
                tokens = record.block_tokens(node.depth)
                tail = record.tokens_left - record.head_tokens - sum(tokens)
                place = (record.head, record.head_tokens, node.context, tokens)
                found.append((talk, WarmPrefix(request, *place, 1, tail)))
        return found

    def left(self, talks: Sequence[tuple[str, WarmPrefix]]) -> None:
        """Hand them over to the replicas there are now, each its share of them, and of its room."""
        live = list(self._index.replicas.live.values())
        for place, info in enumerate(live):
            room = int(info.capacity_tokens * SHARE)
            due = self._due.setdefault(info.replica, deque())
            for talk, prefix in talks[place :: len(live)]:
                if prefix.tokens <= room:
                    room -= prefix.tokens
                    due.append(_Due(prefix, talk))

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
                    again = one.talk is not None
                    found.append(Offer(replica, one.prefix.request, one.prefix.tokens, again))
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
        if one.talk is not None and (
            self._talks.get(one.talk) != prefix.request or prefix.request in self._index.records
        ):
            return None  # it has gone on by itself
        usable = offer.replica in self._index.replicas.usable
        if not usable or self._index.load.ledger.prefill_tokens(offer.replica):
            return None
        request = PlanRequest(
            name,
            prefix.head,
            prefix.head_tokens,
            prefix.context,
            prefix.block_tokens,
            prefix.tail_tokens,
            movable=False,
        )
        (step,) = self._index.plan([request], now, only=offer.replica)
        self._counters["warmed" if one.talk is None else "handed_over"] += 1
        self._counters["warmed_tokens"] += prefix.tokens - step.reused_tokens
        return step

    def counters(self) -> dict[str, int]:
        """warmed, handed_over: prompts. warmed_tokens: prefilled by both. Since the start."""
        return dict(self._counters)
