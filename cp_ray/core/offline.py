"""Offline orders: contexts clustered ahead of time (Algorithm 4), which no replica holds yet.

They hold behind every head: an order is a property of the blocks. Following one costs nothing
and makes the requests of the same kind share a prefix from the first on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cp_ray.core.clustering import cluster
from cp_ray.core.node import ContextNode
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import Context, RequestId, Step
from cp_ray.errors import ConfigError

NOBODY = 0
"""Holder bit of an order that no replica holds."""
_FORMAT = "cp_ray offline index 1"


class _File(msgspec.Struct, frozen=True):
    format: str
    contexts: list[Context]


class OfflineOrders:
    """Owner of the tree of offline orders."""

    def __init__(self) -> None:
        self._tree = ContextTree()

    @property
    def root(self) -> ContextNode:
        """Root of the tree, for searches."""
        return self._tree.root

    def build(self, contexts: Sequence[Context], alpha: float) -> list[Step]:
        """Algorithm 4: cluster, keep the orders; returns one step per context, in input order.

        The steps carry the prefix-aligned context and its search path, for Algorithm 5.
        """
        clustered = cluster(contexts, alpha)
        names = self.adopt(clustered.contexts)
        for node in self.root.walk():
            node.merge_distance = clustered.merges.get(node.context, node.merge_distance)
        return [self._step(name) for name in names]

    def adopt(self, contexts: Sequence[Context]) -> list[RequestId]:
        """Take over contexts whose order is decided; returns the names they are kept under."""
        first = len(self._tree.node_of)
        names = [RequestId(f"offline-{first + i}") for i in range(len(contexts))]
        for name, context in zip(names, contexts, strict=True):
            self._tree.insert(name, context, NOBODY)
        return names

    def dump(self) -> bytes:
        """The orders as a file that `load` reads."""
        contexts = [node.context for node in self._tree.node_of.values()]
        return msgspec.msgpack.encode(_File(_FORMAT, contexts))

    @classmethod
    def load(cls, data: bytes) -> OfflineOrders:
        """Read what `dump` wrote; ConfigError when it is something else."""
        try:
            file = msgspec.msgpack.decode(data, type=_File)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"this is no offline index: {error}; make one with `cp-ray run-batch --plan-only`",
                param="index",
            ) from error
        if file.format != _FORMAT:
            raise ConfigError(
                f"offline index of format {file.format!r}; this version reads {_FORMAT!r}: "
                "build it again with `cp-ray run-batch --plan-only`",
                param="index",
            )
        orders = cls()
        orders.adopt(file.contexts)
        return orders

    def check(self) -> None:
        """Raise InvariantError unless the tree is sound."""
        self._tree.check()

    def _step(self, name: RequestId) -> Step:
        node = self._tree.node_of[name]
        path = node.search_path
        branch = f"offline/{path[0]}" if path else "offline"
        return Step(name, node.context, None, branch, path, 0, "load")
