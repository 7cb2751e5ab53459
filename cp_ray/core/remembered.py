"""Orders worth remembering after their last holder evicted them (bounded, oldest forgotten first).

The next request that brings the same blocks then recreates the same prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from cp_ray.core.node import ContextNode
from cp_ray.errors import InvariantError

MIN_FREQUENCY: Final = 2
"""Requests that must have passed: an order seen once is rarely seen again."""


class RememberedOrders:
    """Owner of the leaves, in any tree, that no request holds and no child follows."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Ordered: a plain dict finds its first key by passing over all that were deleted before it.
        self._leaves: OrderedDict[ContextNode, None] = OrderedDict()

    def prune(self, node: ContextNode) -> None:
        """Take out what is empty from `node` upward; a familiar node stays, remembered."""
        while node.parent is not None and not node.children and node.vacant:
            if node.frequency >= MIN_FREQUENCY and self._limit:
                self._leaves[node] = None
                break
            node = _unlink(node)
        while len(self._leaves) > self._limit:
            oldest = next(iter(self._leaves))
            del self._leaves[oldest]
            above = _unlink(oldest)
            if above.parent is not None and not above.children and above.vacant:
                self._leaves[above] = None

    def grown(self, node: ContextNode) -> None:
        """The node has a request or a child again: it is no remembered leaf."""
        self._leaves.pop(node, None)

    def forget(self, root: ContextNode) -> None:
        """Drop a whole tree."""
        for node in root.walk():
            self._leaves.pop(node, None)

    def __contains__(self, node: object) -> bool:
        return node in self._leaves

    def fill(self) -> tuple[int, int]:
        """Leaves held, and the most there can be."""
        return len(self._leaves), self._limit

    def __len__(self) -> int:
        return len(self._leaves)

    def check(self) -> None:
        """Raise InvariantError unless every leaf is one, and linked."""
        for node in self._leaves:
            parent = node.parent
            linked = parent and parent.children.get(node.edge[0]) is node
            if node.children or not node.vacant or not linked:
                raise InvariantError(f"remembered orders: {node.context} is no remembered leaf")
        if len(self._leaves) > self._limit:
            raise InvariantError("remembered orders: more than the limit")


def _unlink(node: ContextNode) -> ContextNode:
    """Take a node out of its tree; returns its parent."""
    parent = node.parent
    if parent is None:
        raise InvariantError("the root cannot be taken out")
    parent.disown(node)
    return parent
