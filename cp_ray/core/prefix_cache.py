"""The one model of an engine's prefix cache: the simulated engine and `bench reuse` use it.

Pages live in a trie of pieces. A page belongs to the piece of its last token, so a page that
spans a border is shared only when everything before it is equal, and a whole document is one
node whatever its length. Pages leave by least recent use, a request's deepest page first, never
while a running request uses them; so a page goes before any page it extends.
Source: vLLM 0.32's block pool, and SGLang's radix cache for `finished`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from cp_ray.core.pages import Layout, Node, Piece, Run, Running, lay_out
from cp_ray.core.types import Eviction, RequestId
from cp_ray.errors import InvariantError

Sharing = Literal["step", "finished"]
"""When a page counts as cached for others: once allocated (vLLM), or once prefilled (SGLang)."""


class PrefixCache:
    """Pages of one cache. All sizes in the API are tokens.

    capacity_tokens: None = without limit. sharing: see `Sharing`.
    duplicates: a prompt of whole pages that is cached whole stores its recomputed last page a
        second time (vLLM); otherwise that page is recomputed in place.
    record_limit: registered requests remembered; the oldest is reported as lost beyond it.
    """

    def __init__(
        self,
        capacity_tokens: int | None,
        page_size: int,
        *,
        sharing: Sharing = "step",
        duplicates: bool = False,
        record_limit: int = 1 << 16,
    ) -> None:
        if duplicates and sharing == "finished":
            raise ValueError("duplicates: an engine that shares finished pages frees its copies")
        self.page_size = page_size
        self._capacity = None if capacity_tokens is None else capacity_tokens // page_size
        self._sharing = sharing
        self._duplicates = duplicates
        self._record_limit = record_limit
        self._root = Node(None, None, 0)
        # Ordered: a plain dict finds its first key by passing over all that were deleted before it.
        self._idle: OrderedDict[Run, None] = OrderedDict()
        self._idle_pages = self._used = 0
        self._running: dict[RequestId, Running] = {}
        self._left: OrderedDict[RequestId, int] = OrderedDict()
        self._node_of: dict[RequestId, Node] = {}
        self._lost: dict[RequestId, int] = {}

    @property
    def used_tokens(self) -> int:
        """Tokens of all pages in use or cached."""
        return self._used * self.page_size

    def fits(self, tokens: int) -> bool:
        """Whether a prompt of so many tokens fits into the empty cache."""
        return self._capacity is None or -(-tokens // self.page_size) <= self._capacity

    def lay_out(self, pieces: Sequence[Piece]) -> Layout:
        """The prompt cut into the spans of this cache's pages. Changes nothing."""
        return lay_out(pieces, self.page_size, last_page_apart=self._duplicates)

    def lookup(self, pieces: Sequence[Piece]) -> int:
        """Tokens of the prompt that `admit` would find now. Changes nothing."""
        return self.lookup_laid_out(self.lay_out(pieces))

    def lookup_laid_out(self, layout: Layout) -> int:
        """As `lookup`. layout: made by `lay_out` of any cache of the same pages."""
        path = self._match(layout)
        return min(path[-1].reach if path else 0, layout.most_cached) * self.page_size

    def admit(self, request_id: RequestId, pieces: Sequence[Piece]) -> int | None:
        """Pin and allocate the pages of a prompt; its cached tokens (the last is never one).

        None: running requests leave no room now; nothing has changed.
        """
        if request_id in self._running:
            raise InvariantError(f"request {request_id} is running; give each its own request id")
        layout = self.lay_out(pieces)
        path = self._match(layout)
        found = path[-1].reach if path else 0
        cached = min(found, layout.most_cached)
        if cached < found and self._duplicates:
            path.pop()
        in_place = self._sharing == "step" and not self._duplicates
        need = layout.all_pages - (found if in_place else cached)
        pins = [node.runs[0] for node in path]
        if not self._has_room(need, pins):
            return None
        for run in pins:
            self._pin(run)
        self._allocate(need)
        running = self._running[request_id] = Running(layout, pins, need)
        if self._sharing == "step":
            self._share(running)
        return cached * self.page_size

    def prefilled(self, request_id: RequestId) -> None:
        """The prompt's pages hold their content: share them, register the request.

        Unknown ids, second calls and requests from before `clear` do nothing.
        """
        running = self._running.get(request_id)
        if running is None or running.prefilled or running.orphan:
            return
        running.prefilled = True
        if self._sharing == "finished":
            self._share(running)
            surplus = running.own - (running.layout.all_pages - running.layout.whole_pages)
            running.own -= surplus
            self._used -= surplus
        for run in running.pins:
            run.solid = run.held
        if running.pins:
            self._register(request_id, running.pins[-1].node)

    def release(self, request_id: RequestId) -> None:
        """The request ended. Pages that nobody filled are dropped. Unknown ids do nothing."""
        running = self._running.pop(request_id, None)
        if running is None:
            return
        self._used -= running.own
        for run in reversed(running.pins):
            run.refs -= 1
            if run.refs:
                continue
            kept = 0 if running.orphan else run.solid
            self._used -= run.held - kept
            run.held = kept
            if kept:
                self._idle[run] = None
                self._idle_pages += kept
            elif not running.orphan:
                run.node.drop(run)

    def clear(self) -> None:
        """Empty the cache. Running requests keep their pages, which nobody will find again."""
        self._used -= self._idle_pages
        self._idle_pages = 0
        self._idle.clear()
        self._root = Node(None, None, 0)
        self._left.clear()
        self._node_of.clear()
        self._lost.clear()
        for running in self._running.values():
            running.orphan = True

    def take_evictions(self) -> list[Eviction]:
        """Registered requests whose usable tokens shrank since the last call."""
        lost = [Eviction(request, pages * self.page_size) for request, pages in self._lost.items()]
        self._lost.clear()
        return lost

    def held(self) -> dict[RequestId, int]:
        """Leading tokens still cached of every registered request."""
        return {request: pages * self.page_size for request, pages in self._left.items()}

    def check(self) -> None:
        """Raise InvariantError unless the books balance."""
        refs: dict[Run, int] = {}
        orphans: set[Run] = set()
        pages = sum(running.own for running in self._running.values())
        for running in self._running.values():
            _demand(running.own >= 0, "a request owns less than nothing")
            orphans.update(running.pins if running.orphan else ())
            for run in running.pins:
                refs[run] = refs.get(run, 0) + 1
        pages += sum(run.held for run in orphans)
        idle: set[Run] = set()
        stack = [self._root]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            _demand(node is self._root or bool(node.runs), "a node without pages")
            _demand(node is self._root or node.full or not node.children, "a page outlived another")
            _demand(len(node.runs) < 2 or node.pages == 1, "a copy of more than one page")
            for run in node.runs:
                pages += run.held
                _demand(0 <= run.solid <= run.held <= node.pages, "a run exceeds its piece")
                _demand(run.refs == refs.get(run, 0), "pins differ from the running requests'")
                _demand(bool(run.refs) or run.held == run.solid > 0, "an idle page is not filled")
                if not run.refs:
                    idle.add(run)
            for request in node.requests or ():
                _demand(self._node_of.get(request) is node, "node_of differs from node.requests")
                _demand(self._left[request] <= node.reach, "a request keeps more than its node")
        _demand(idle == set(self._idle), "the eviction queue differs from the idle pages")
        _demand(self._idle_pages == sum(run.held for run in idle), "idle pages miscounted")
        _demand(self._used == pages, "used pages miscounted")
        _demand(self._capacity is None or pages <= self._capacity, "more pages than capacity")
        _demand(self._left.keys() == self._node_of.keys(), "a record without a node")
        _demand(len(self._left) <= self._record_limit, "more records than the limit")

    def _match(self, layout: Layout) -> list[Node]:
        """The path of nodes that hold the prompt's leading pages."""
        path: list[Node] = []
        node: Node | None = self._root
        for key, _ in layout.spans:
            node = node.children.get(key) if node else None
            if node is None:
                break
            path.append(node)
            if not node.full:
                break
        return path

    def _has_room(self, need: int, pins: Sequence[Run]) -> bool:
        if self._capacity is None:
            return True
        spared = sum(run.held for run in pins if not run.refs)
        return need <= self._capacity - self._used + self._idle_pages - spared

    def _allocate(self, need: int) -> None:
        """Take `need` pages, evicting the least recently used; `_has_room` was asked before."""
        self._used += need
        missing = 0 if self._capacity is None else self._used - self._capacity
        while missing > 0:
            run = next(iter(self._idle))
            gone = min(missing, run.held)
            missing -= gone
            self._used -= gone
            self._idle_pages -= gone
            run.solid = run.held = run.held - gone
            if not run.held:
                del self._idle[run]
                run.node.drop(run)
            if run.node.requests:
                self._report(run.node, run.node.requests)

    def _pin(self, run: Run) -> None:
        if not run.refs:
            del self._idle[run]
            self._idle_pages -= run.held
        run.refs += 1

    def _share(self, running: Running) -> None:
        """Put the request's own pages into the trie, where a path does not hold them yet."""
        node = self._root
        for depth, (key, pages) in enumerate(running.layout.spans):
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = Node(key, node, pages)
            if depth == len(running.pins):
                if not child.runs or self._duplicates:
                    run = Run(child)
                    run.refs = 1
                    child.runs.append(run)
                else:
                    run = child.runs[0]
                    self._pin(run)
                running.pins.append(run)
            run = running.pins[depth]
            running.own -= pages - run.held
            run.held = pages
            node = child

    def _register(self, request_id: RequestId, node: Node) -> None:
        self._forget(request_id)
        self._lost.pop(request_id, None)
        self._left[request_id] = node.reach
        self._node_of[request_id] = node
        node.join(request_id)
        if len(self._left) > self._record_limit:
            oldest = next(iter(self._left))
            self._forget(oldest)
            self._lost[oldest] = 0

    def _report(self, node: Node, requests: set[RequestId]) -> None:
        """Tell what the requests of a node lost; those of an empty one move to its parent."""
        reach = node.reach
        for request in requests:
            if reach < self._left[request]:
                self._left[request] = self._lost[request] = reach
        if node.runs or node.parent is None:
            return
        for request in list(requests):
            if reach:
                self._node_of[request] = node.parent
                node.parent.join(request)
            else:
                self._forget(request)

    def _forget(self, request_id: RequestId) -> None:
        node = self._node_of.pop(request_id, None)
        if node is not None and node.requests is not None:
            node.requests.discard(request_id)
            del self._left[request_id]


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InvariantError(f"prefix cache: {otherwise}")
