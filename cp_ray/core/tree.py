"""The context tree of one head: a radix tree over context blocks (paper 4.1, 4.2).

A child's context strictly extends its parent's, so a node is a prefix some engine may hold. The
tree is never restructured: insertion appends or splits one edge, removal prunes upward.
"""

from __future__ import annotations

from collections.abc import Sequence

from cp_ray.core.node import NO_CHILDREN, ContextNode, mark
from cp_ray.core.remembered import RememberedOrders
from cp_ray.core.types import Context, RequestId
from cp_ray.errors import InvariantError


class ContextTree:
    """Owner of the nodes under one head.

    remembered: shared with other trees; without it nothing is remembered.
    """

    def __init__(self, remembered: RememberedOrders | None = None) -> None:
        self._remembered = RememberedOrders(0) if remembered is None else remembered
        self.root = ContextNode((), None, 0)
        self.node_of: dict[RequestId, ContextNode] = {}

    def insert(self, request: RequestId, context: Context, holder: int) -> ContextNode:
        """Store a request at the node of exactly `context`, held by bit number `holder`.

        O(1) below an internal node, O(|context|) where an edge must be split (paper 4.2).
        """
        if request in self.node_of:
            raise InvariantError(f"request {request} is in the tree already")
        node = self._node_at(context)
        above: ContextNode | None = node
        while above is not None:
            above.frequency += 1
            above = above.parent
        self._attach(request, node, holder)
        return node

    def remove(self, request: RequestId) -> None:
        """Take a request out and prune what is then empty, O(height) (paper 4.1)."""
        node = self._detach(request)
        self._remembered.prune(node)

    def truncate(self, request: RequestId, length: int) -> None:
        """Let a request hold only its first `length` blocks."""
        node = self.node_of[request]
        if length >= node.depth:
            return
        holder = node.holder_of(request)
        self._detach(request)
        self._attach(request, self._node_at(node.context[:length]), holder)
        self._remembered.prune(node)

    def move(self, request: RequestId, holder: int) -> None:
        """Let another replica hold the request's prefix."""
        node = self._detach(request)
        self._attach(request, node, holder)

    def traverse(self, path: Sequence[int]) -> ContextNode | None:
        """Follow slots from the root (paper 4.2); None when the path is no longer there."""
        node: ContextNode | None = self.root
        for slot in path:
            node = node.by_slot(slot) if node is not None else None
        return node

    def _node_at(self, context: Context) -> ContextNode:
        """The node of exactly `context`, made where missing."""
        node = self.root
        depth, whole = 0, len(context)
        while depth < whole:
            child = node.children.get(context[depth])
            if child is None:
                child = ContextNode(context[depth:], node, node.next_slot)
                node.next_slot += 1
                node.adopt(child)
                self._remembered.grown(node)
                return child
            edge = child.edge
            if context[depth : child.depth] == edge:  # most are; the interpreter compares faster
                node, depth = child, child.depth
                continue
            along = 1
            limit = min(len(edge), whole - depth)
            while along < limit and edge[along] == context[depth + along]:
                along += 1
            node = child if along == len(edge) else _split(child, along)
            depth += along
        return node

    def _attach(self, request: RequestId, node: ContextNode, holder: int) -> None:
        if node.vacant:
            self._remembered.grown(node)
        node.add(request, holder)
        self.node_of[request] = node
        bit = 1 << holder
        above: ContextNode | None = node
        while above is not None and not above.holders & bit:
            above.holders |= bit
            above = above.parent

    def _detach(self, request: RequestId) -> ContextNode:
        node = self.node_of.pop(request)
        holder = node.take(request)
        above: ContextNode | None = node
        while above is not None and not above.still_holds(holder):
            above.holders &= ~(1 << holder)
            above = above.parent
        return node

    def check(self) -> None:
        """Raise InvariantError unless the tree's invariants hold (design: tree invariants 1-6)."""
        seen: dict[RequestId, ContextNode] = {}
        _require(not NO_CHILDREN, "leaves have no children", self.root)
        for node in self.root.walk():
            holders = 0
            slots = set()
            for request, holder in node.requests.items():
                seen[request] = node
                holders |= 1 << holder
            for first, child in node.children.items():
                _require(child.parent is node, "a child knows its parent", child)
                longer = child.depth == node.depth + len(child.edge) > node.depth
                _require(longer, "a child extends its parent", child)
                _require(child.edge[0] == first, "children are keyed by first block", child)
                _require(child.slot < node.next_slot, "slots are never reused", child)
                slots.add(child.slot)
                holders |= child.holders
            _require(len(slots) == len(node.children), "slots are unique", node)
            marked = all(node.marks & mark(first) for first in node.children)
            _require(marked, "children's blocks are marked", node)
            _require(bool(node.children or not node.marks), "a leaf has no marks", node)
            _require(node.holders == holders, "holders are the union below", node)
            _require(
                bool(node.children)
                or not node.vacant
                or node.parent is None
                or node in self._remembered,
                "no empty node but the root and remembered leaves",
                node,
            )
            context = node.context
            _require(len(set(context)) == len(context) == node.depth, "blocks are distinct", node)
        _require(seen == self.node_of, "node_of and requests are inverses", self.root)


def _split(child: ContextNode, along: int) -> ContextNode:
    """Put a node after `along` blocks of the child's edge, above it.

    It takes the child's slot, so branches stay.
    """
    parent = child.parent
    if parent is None:
        raise InvariantError("the root has no edge to split")
    middle = ContextNode(child.edge[:along], parent, child.slot)
    parent.adopt(middle)
    middle.frequency = child.frequency
    middle.holders = child.holders
    middle.next_slot = 1
    child.edge = child.edge[along:]
    child.parent = middle
    child.slot = 0
    middle.adopt(child)
    return middle


def _require(holds: bool, what: str, node: ContextNode) -> None:
    if not holds:
        raise InvariantError(f"context tree: {what}: violated at {node.context}")
