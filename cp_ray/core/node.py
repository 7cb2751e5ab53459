"""A context node: a prefix the index knows, with the paper's four attributes (paper 4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cp_ray.core.types import BlockId, Context, RequestId

NO_CHILDREN: Final[dict[BlockId, ContextNode]] = {}
"""Shared by all leaves, and stays empty: an own dict would be a twentieth of an index's memory."""
MARKS: Final = 62
"""Of blocks, by their hash: as many as compiled code holds in a register."""
FEW: Final = 8
"""Children whose marks are made anew when one leaves."""


def mark(block: BlockId) -> int:
    """One of MARKS bits; blocks may share it."""
    return 1 << hash(block) % MARKS


class ContextNode:
    """One prefix, with the four attributes of paper 4.1.

    (1) context: its blocks, derived from the edges. (2) search_path. (3) frequency: requests that
    passed through. (4) merge_distance: clustering distance at which it was created, 0 online.
    edge: blocks beyond the parent's context; depth: blocks of the whole context. children: keyed
    by the first block of their edge; marks: of these blocks, and perhaps of more, 0 of a leaf.
    slot: this node's number under its parent; `next_slot` only grows, so a slot is never reused.
    holders: bit set of replicas that have this prefix, the union over `requests` and children.
    """

    __slots__ = (
        "_first",
        "_first_holder",
        "_others",
        "children",
        "depth",
        "edge",
        "frequency",
        "holders",
        "marks",
        "merge_distance",
        "next_slot",
        "parent",
        "slot",
    )

    def __init__(self, edge: Context, parent: ContextNode | None, slot: int) -> None:
        # What a search reads comes first: compiled, it is one line of the processor's cache.
        self.edge = edge
        self.holders = 0
        self.depth: int = len(edge) + (parent.depth if parent is not None else 0)
        self.children: dict[BlockId, ContextNode] = NO_CHILDREN
        self.frequency = 0
        self.marks = 0
        self.parent = parent
        self.slot = slot
        self.next_slot = 0
        self._first: RequestId | None = None
        self._first_holder = 0
        self._others: dict[RequestId, int] | None = None
        self.merge_distance = 0.0

    @property
    def context(self) -> Context:
        """The blocks from the root to here."""
        context = self.edge
        node = self.parent
        while node is not None:
            context = node.edge + context
            node = node.parent
        return context

    @property
    def search_path(self) -> tuple[int, ...]:
        """Slots from the root to here; derived, because a split changes all but the first."""
        path = []
        node = self
        while node.parent is not None:
            path.append(node.slot)
            node = node.parent
        return tuple(reversed(path))

    def adopt(self, child: ContextNode) -> None:
        """Put a child under the first block of its edge, in place of any that was there."""
        if self.children is NO_CHILDREN:
            self.children = {child.edge[0]: child}
        else:
            self.children[child.edge[0]] = child
        self.marks |= mark(child.edge[0])

    def disown(self, child: ContextNode) -> None:
        """Take a child out."""
        del self.children[child.edge[0]]
        if not self.children:
            self.children = NO_CHILDREN
        if len(self.children) <= FEW:
            self.marks = 0
            for block in self.children:
                self.marks |= mark(block)

    @property
    def requests(self) -> dict[RequestId, int]:
        """The requests of exactly this context, and the bit number that holds each."""
        first = {} if self._first is None else {self._first: self._first_holder}
        return first | (self._others or {})

    @property
    def vacant(self) -> bool:
        """Whether no request is here."""
        return self._first is None and not self._others

    def add(self, request: RequestId, holder: int) -> None:
        """Put a request here. Most nodes have one: a dict is made for the second only."""
        if self._first is None:
            self._first, self._first_holder = request, holder
        elif self._others is None:
            self._others = {request: holder}
        else:
            self._others[request] = holder

    def take(self, request: RequestId) -> int:
        """Take a request out; returns its holder. KeyError when it is not here."""
        if request == self._first:
            self._first = None
            return self._first_holder
        holder = (self._others or {}).pop(request)
        self._others = self._others or None
        return holder

    def holder_of(self, request: RequestId) -> int:
        """The bit number that holds a request of this node."""
        return self._first_holder if request == self._first else (self._others or {})[request]

    def still_holds(self, holder: int) -> bool:
        """Whether a request here or a child sets bit number `holder`."""
        if self._first is not None and self._first_holder == holder:
            return True
        if self._others is not None and holder in self._others.values():
            return True
        return any(child.holders >> holder & 1 for child in self.children.values())

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
