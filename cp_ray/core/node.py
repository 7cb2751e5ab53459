"""A context node: a prefix the index knows, with the paper's four attributes (paper 4.1)."""

from __future__ import annotations

from collections.abc import Iterator

from cp_ray.core.types import BlockId, Context, RequestId


class ContextNode:
    """One prefix, with the four attributes of paper 4.1.

    (1) context: its blocks. (2) search_path. (3) frequency: requests that passed through.
    (4) merge_distance: clustering distance at which it was created, 0 online.
    children: keyed by the first block beyond this context. slot: this node's number under its
    parent; `next_slot` only grows, so a slot is never reused. holders: bit set of replicas that
    have this prefix, the union over `requests` and children.
    """

    __slots__ = (
        "children",
        "context",
        "frequency",
        "holders",
        "merge_distance",
        "next_slot",
        "parent",
        "requests",
        "slot",
    )

    def __init__(self, context: Context, parent: ContextNode | None, slot: int) -> None:
        self.context = context
        self.parent = parent
        self.slot = slot
        self.children: dict[BlockId, ContextNode] = {}
        self.next_slot = 0
        self.requests: dict[RequestId, int] = {}
        self.frequency = 0
        self.merge_distance = 0.0
        self.holders = 0

    @property
    def search_path(self) -> tuple[int, ...]:
        """Slots from the root to here; derived, because a split changes all but the first."""
        path = []
        node = self
        while node.parent is not None:
            path.append(node.slot)
            node = node.parent
        return tuple(reversed(path))

    def still_holds(self, holder: int) -> bool:
        """Whether a request here or a child sets bit number `holder`."""
        if holder in self.requests.values():
            return True
        return any(child.holders >> holder & 1 for child in self.children.values())

    def edge(self) -> Context:
        """Blocks by which this node extends its parent."""
        return self.context[len(self.parent.context) :] if self.parent else self.context

    def by_slot(self, slot: int) -> ContextNode | None:
        """Child in this slot."""
        return next((child for child in self.children.values() if child.slot == slot), None)

    def walk(self) -> Iterator[ContextNode]:
        """This node and all below, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())
