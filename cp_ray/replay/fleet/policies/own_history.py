"""A tree of prompts by where they were sent: what a router knows that hears no engine events.

Source: the character trees of SGLang's gateway and of Ray's PrefixTree, on whole pieces.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from cp_ray.core.pages import Piece


class _Node:
    __slots__ = ("below", "replicas")

    def __init__(self) -> None:
        self.below: dict[Hashable, _Node] = {}
        self.replicas: set[int] = set()


class OwnHistory:
    """Never evicts: both projects' defaults are larger than these traces. size: tokens inserted."""

    def __init__(self, replicas: int) -> None:
        self._root = _Node()
        self.size = [0] * replicas

    def match(self, pieces: Sequence[Piece]) -> tuple[int, set[int]]:
        """Tokens of the longest known prefix, and the replicas that were sent it."""
        node, tokens = self._root, 0
        for key, length in pieces:
            child = node.below.get(key)
            if child is None:
                break
            node = child
            tokens += length
        return tokens, node.replicas

    def insert(self, pieces: Sequence[Piece], replica: int) -> None:
        """The prompt was sent there."""
        node = self._root
        for key, length in pieces:
            node = node.below.setdefault(key, _Node())
            if replica not in node.replicas:
                node.replicas.add(replica)
                self.size[replica] += length
