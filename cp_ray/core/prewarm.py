"""Pre-warming: which prefixes a replica that has just joined should prefill before it is asked.

What is asked now is what the newest records begin with. A prefix that `uses` of them begin with
saves its tokens as often as such requests come to the replica, so those used most come first. A
branch is warmed on as many of the joining replicas as its share of the traffic fills; all copies of
a small branch would cost more prefill than they save.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import msgspec

from cp_ray.core.memory import Memory
from cp_ray.core.node import ContextNode
from cp_ray.core.record import Record
from cp_ray.core.types import Context, HeadId, ReplicaId, ReplicaInfo, RequestId

NEWEST = 10_000
"""Records looked at; bounds the time of a decision to some 50 ms."""
MIN_USES = 3
"""A prefix that one request has is no more likely to come than any other."""
SHARE = 0.5
"""Of a cache that is warmed: the rest is for what clients bring."""


class WarmPrefix(msgspec.Struct, frozen=True, array_like=True):
    """A prompt to prefill. request: one that begins so. uses: how many of the newest do.

    tail_tokens: what follows the blocks, where it is the whole prompt of `request`.
    """

    request: RequestId
    head: HeadId
    head_tokens: int
    context: Context
    block_tokens: tuple[int, ...]
    uses: int
    tail_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Length of the prompt."""
        return self.head_tokens + sum(self.block_tokens) + self.tail_tokens


class _Seen:
    """A node and what the newest records say of it. load: prompt tokens of those below it."""

    __slots__ = ("load", "record", "request", "uses")

    def __init__(self, request: RequestId, record: Record) -> None:
        self.request = request
        self.record = record
        self.uses = 0
        self.load = 0


def warm_prefixes(
    memory: Memory, joining: Sequence[ReplicaInfo], replicas: int
) -> dict[ReplicaId, list[WarmPrefix]]:
    """For each joining replica what to prefill, the most used first; every prefix after its parent.

    replicas: of the whole fleet, the joining ones included.
    """
    nodes: dict[ReplicaId, list[ContextNode]] = {info.replica: [] for info in joining}
    if not nodes:
        return {}
    seen = _newest(memory)
    tops = [node for node in seen if node.parent is not None and node.parent.parent is None]
    tops.sort(key=lambda node: (-seen[node].load, seen[node].record.head, node.slot))
    total = sum(seen[top].load for top in tops)
    load = dict.fromkeys(nodes, 0.0)
    for top in tops:
        if seen[top].uses < MIN_USES:
            continue
        used = [node for node in top.walk() if node in seen and seen[node].uses >= MIN_USES]
        weight = seen[top].load
        copies = min(len(nodes), math.ceil(weight * replicas / total))
        for replica in sorted(load, key=lambda name: (load[name], name))[:copies]:
            load[replica] += weight / copies
            nodes[replica] += used
    return {info.replica: _fitting(nodes[info.replica], seen, info) for info in joining}


def _newest(memory: Memory) -> dict[ContextNode, _Seen]:
    """All nodes but the roots on the way to the newest records."""
    seen: dict[ContextNode, _Seen] = {}
    for request, record in islice(reversed(memory.records.items()), NEWEST):
        node = memory.trees[record.head].node_of[request]
        while node.parent is not None:
            one = seen.get(node)
            if one is None:
                one = seen[node] = _Seen(request, record)
            one.uses += 1
            one.load += record.tokens_left
            node = node.parent
    return seen


def _fitting(
    nodes: list[ContextNode], seen: dict[ContextNode, _Seen], info: ReplicaInfo
) -> list[WarmPrefix]:
    """Of these nodes, the most used first, what has room; each behind its parent."""
    room = int(info.capacity_tokens * SHARE)
    taken: set[ContextNode] = set()
    prefixes = []
    for node in sorted(nodes, key=lambda one: (-seen[one].uses, one.depth)):
        above, one = node.parent, seen[node]
        if above is None or (above.parent is not None and above not in taken):
            continue
        tokens = one.record.block_tokens(node.depth)
        new = sum(tokens[above.depth :]) + (0 if above.depth else one.record.head_tokens)
        if new <= room:
            room -= new
            taken.add(node)
            record = one.record
            prefixes.append(
                WarmPrefix(
                    one.request, record.head, record.head_tokens, node.context, tokens, one.uses
                )
            )
    return prefixes
