"""What the index remembers: one record a request, in the tree of its head, on its replica's list.

Three views of the same requests, changed only together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from cp_ray.core.record import Record
from cp_ray.core.remembered import RememberedOrders
from cp_ray.core.replicas import ReplicaTable
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import Context, Eviction, HeadId, ReplicaId, RequestId
from cp_ray.errors import InvariantError

SLACK: Final = 1024
"""Names of removed requests that the line by age may hold, beside as many as there are records."""
EARLY: Final = 4096
"""Evictions kept that came before the word of the spill that explains them."""


class Memory:
    """Owner of records, trees and lists. records: oldest first. remembered: of all trees."""

    def __init__(self, remembered: RememberedOrders) -> None:
        self._remembered = remembered
        self.trees: dict[HeadId, ContextTree] = {}
        self.records: dict[RequestId, Record] = {}
        self._age: deque[RequestId] = deque()
        # Dicts of None: a set takes two to five times the room.
        self._on_replica: dict[ReplicaId, dict[RequestId, None]] = {}
        self._early: dict[tuple[ReplicaId, RequestId], int] = {}

    def remember(self, request: RequestId, record: Record, context: Context, bit: int) -> None:
        """Add a planned request. bit: its replica's."""
        tree = self.trees.get(record.head)
        if tree is None:
            tree = self.trees[record.head] = ContextTree(self._remembered)
        tree.insert(request, context, bit)
        self.records[request] = record
        self._age.append(request)
        if len(self._age) > SLACK + 2 * len(self.records):
            self._age = deque(self.records)
        self._on_replica.setdefault(record.replica, {})[request] = None

    def evicted_early(self, replica: ReplicaId, eviction: Eviction) -> None:
        """A replica lost what we do not know to be there: a spill we have yet to hear of."""
        if eviction.request_id in self.records:
            self._early[replica, eviction.request_id] = eviction.tokens_left
            if len(self._early) > EARLY:
                del self._early[next(iter(self._early))]

    def move(self, request: RequestId, replica: ReplicaId, bit: int) -> None:
        """The request's prompt is on another replica, less what was evicted there already."""
        record = self.records[request]
        self._on_replica[record.replica].pop(request, None)
        record.replica = replica
        self._on_replica.setdefault(replica, {})[request] = None
        self.trees[record.head].move(request, bit)
        left = self._early.pop((replica, request), None)
        if left is not None:
            self.shrink(request, left)

    def shrink(self, request: RequestId, tokens_left: int) -> None:
        """At most `tokens_left` leading prompt tokens remain; without its head it is removed."""
        record = self.records[request]
        if tokens_left >= record.tokens_left:
            return
        record.tokens_left = tokens_left
        blocks = record.blocks_left()
        if blocks < 0:
            self.remove(request)
        else:
            self.trees[record.head].truncate(request, blocks)

    def remove(self, request: RequestId) -> None:
        """Forget one request."""
        record = self.records.pop(request)
        tree = self.trees[record.head]
        tree.remove(request)
        if not tree.node_of:
            self._remembered.forget(tree.root)
            del self.trees[record.head]
        self._on_replica[record.replica].pop(request, None)

    def remove_oldest(self) -> None:
        """Forget the oldest request; there must be one.

        Not the first key of `records`: finding it costs as much as keys were deleted before it.
        """
        while (request := self._age.popleft()) not in self.records:
            pass
        self.remove(request)

    def remembered_orders(self) -> tuple[int, int]:
        """Orders remembered without a holder, and the most there can be."""
        return self._remembered.fill()

    def requests_on(self, replica: ReplicaId) -> list[RequestId]:
        """What is on a replica, in no order."""
        return list(self._on_replica.get(replica, ()))

    def forget(self, replica: ReplicaId) -> None:
        """Forget all that is on a replica."""
        for request in self.requests_on(replica):
            self.remove(request)
        self._on_replica.pop(replica, None)

    def keep_only(self, replica: ReplicaId, held: Mapping[RequestId, int]) -> None:
        """Of what is on a replica keep what a dump lists, at most as much of it."""
        for request in self.requests_on(replica):
            if request in held:
                self.shrink(request, held[request])
            else:
                self.remove(request)

    def check(self, replicas: ReplicaTable) -> None:
        """Raise InvariantError unless the three views agree."""
        self._remembered.check()
        known: dict[HeadId, set[RequestId]] = {}
        for request, record in self.records.items():
            known.setdefault(record.head, set()).add(request)
        if not self.records.keys() <= set(self._age):
            raise InvariantError("index: a record has no place in the line by age")
        if known != {head: set(tree.node_of) for head, tree in self.trees.items()}:
            raise InvariantError("index: records and trees disagree")
        for tree in self.trees.values():
            tree.check()
        for request, record in self.records.items():
            replica = record.replica
            node = self.trees[record.head].node_of[request]
            if request not in self._on_replica.get(replica, {}):
                raise InvariantError(f"index: {request} is on no live replica's list")
            if node.requests[request] != replicas.bit(replica):
                raise InvariantError(f"index: {request}'s holder bit is not its replica's")
            if node.depth > max(record.blocks_left(), 0):
                raise InvariantError(f"index: {request} holds more blocks than tokens")
        listed = sum(len(requests) for requests in self._on_replica.values())
        if listed != len(self.records):
            raise InvariantError("index: a replica's list names a request without a record")
