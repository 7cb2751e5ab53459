"""What a prefix cache is made of: pieces of a prompt, trie nodes, runs of physical pages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec

from cp_ray.core.packed import TOKEN_BYTES
from cp_ray.core.types import RequestId

Piece = tuple[Hashable, int]
"""Opaque key and length in tokens. Equal keys after equal prefixes mean equal tokens."""
Span = tuple[Hashable, int]
"""A trie key and the pages that end within it, at least one."""

_JOINED = object()
_LAST = object()


def token_pages(prompt: bytes, page_size: int, salt: str | None = None) -> list[Piece]:
    """A packed prompt as pieces of one page. salt: only requests with it share the pages."""
    pieces: list[Piece] = []
    width = page_size * TOKEN_BYTES
    for start in range(0, len(prompt), width):
        page = prompt[start : start + width]
        key = (salt, page) if salt and not start else page
        pieces.append((key, len(page) // TOKEN_BYTES))
    return pieces


class Layout(msgspec.Struct):
    """A prompt cut into spans. tokens: its length. whole_pages: those that can be cached."""

    spans: list[Span]
    tokens: int
    whole_pages: int
    all_pages: int

    @property
    def most_cached(self) -> int:
        """Pages a hit can cover: the last token is always computed."""
        return max(self.all_pages - 1, 0)


def lay_out(pieces: Sequence[Piece], page_size: int, *, last_page_apart: bool) -> Layout:
    """Assign each page to the piece of its last token; a piece without pages joins the next.

    last_page_apart: the last page of a piece gets a span of its own, so that it can be copied.
    """
    spans: list[Span] = []
    pending: list[Hashable] = []
    tokens = 0
    for piece_key, length in pieces:
        pages = (tokens + length) // page_size - tokens // page_size
        tokens += length
        if not pages:
            pending.append(piece_key)
            continue
        key = (_JOINED, *pending, piece_key) if pending else piece_key
        pending.clear()
        if last_page_apart and pages > 1:
            spans.append((key, pages - 1))
            spans.append((_LAST, 1))
        else:
            spans.append((key, pages))
    return Layout(spans, tokens, tokens // page_size, -(-tokens // page_size))


class Node:
    """The pages that end in one span, after all spans above it.

    first, end: pages above it, and through it. runs: physical pages, the oldest copy first.
    """

    __slots__ = ("children", "end", "first", "key", "pages", "parent", "requests", "runs")

    def __init__(self, key: Hashable, parent: Node | None, pages: int) -> None:
        self.key = key
        self.parent = parent
        self.pages = pages
        self.first: int = parent.end if parent else 0
        self.end: int = self.first + pages
        self.children: dict[Hashable, Node] = {}
        self.runs: list[Run] = []
        self.requests: set[RequestId] | None = None  # few nodes are where a prompt ends

    @property
    def full(self) -> bool:
        """Whether every page is held."""
        return bool(self.runs) and self.runs[0].held == self.pages

    @property
    def reach(self) -> int:
        """Pages a prompt through this node finds, up to its end."""
        return self.first + (self.runs[0].held if self.runs else 0)

    def join(self, request: RequestId) -> None:
        """The request's cached prompt ends here."""
        if self.requests is None:
            self.requests = set()
        self.requests.add(request)

    def drop(self, run: Run) -> None:
        """Remove an empty run, and the node with its last."""
        self.runs.remove(run)
        if not self.runs and self.parent is not None:
            del self.parent.children[self.key]


class Run:
    """Leading pages of one node. held: allocated. solid: prefilled. refs: running users."""

    __slots__ = ("held", "node", "refs", "solid")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.held = 0
        self.solid = 0
        self.refs = 0


class Running:
    """A request in flight. pins: its runs, root first. own: pages that only it can use.

    orphan: the cache was cleared since.
    """

    __slots__ = ("layout", "orphan", "own", "pins", "prefilled")

    def __init__(self, layout: Layout, pins: list[Run], own: int) -> None:
        self.layout = layout
        self.pins = pins
        self.own = own
        self.prefilled = False
        self.orphan = False
