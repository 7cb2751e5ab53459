"""What the fleet can reuse of a request, and the order of blocks that reuses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

from cp_ray.core.interned import interned
from cp_ray.core.joint import Prompt, shared_first
from cp_ray.core.limits import Limits, limited_search
from cp_ray.core.load import IDLE, Queue
from cp_ray.core.memory import Memory
from cp_ray.core.offline import OfflineOrders
from cp_ray.core.ordering import order
from cp_ray.core.path import best_path
from cp_ray.core.replicas import ReplicaTable
from cp_ray.core.rest_order import RestOrder
from cp_ray.core.search import Candidate, best_per_holder, fixed_search, greedy_search
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import BlockId, Context, PlanRequest, ReplicaId, ReplicaInfo


@final
class Wanted:
    """A request to be planned. ranked: its context, by ids that are kept. tokens: of each block.

    total: of the whole prompt. Never changed; a plain class, as `search.Candidate` is.
    """

    __slots__ = ("candidates", "ranked", "request", "tokens", "total")

    def __init__(
        self,
        request: PlanRequest,
        ranked: Context,
        tokens: dict[BlockId, int],
        total: int,
        candidates: list[Candidate],
    ) -> None:
        self.request = request
        self.ranked = ranked
        self.tokens = tokens
        self.total = total
        self.candidates = candidates


@final
class Held:
    """What one replica will have of a request when its turn comes there.

    match: what it has now. tokens: leading ones of the prompt, head included, that will be left.
    had: those it has now.
    Never changed; a plain class, as `search.Candidate` is.
    """

    __slots__ = ("had", "match", "tokens")

    def __init__(self, match: Candidate | None, had: int, left: int | None = None) -> None:
        self.match = match
        self.had = had
        self.tokens = had if left is None else left


class Reuse:
    """Reads the index's memory and load; owns only what is learnt about the order of the rest."""

    def __init__(
        self,
        memory: Memory,
        replicas: ReplicaTable,
        queues: dict[ReplicaId, Queue],
        *,
        offline: OfflineOrders,
        search: Literal["exact", "paper"],
        alpha: float,
        limits: Limits,
    ) -> None:
        self.rest_order = RestOrder(limits=limits)
        self._limits = limits
        self._search = search
        self._alpha = alpha
        self._memory = memory
        self._replicas = replicas
        self._queues = queues
        self._offline = offline

    def wanted(self, request: PlanRequest) -> Wanted:
        """The request with the known prefixes that it could begin with."""
        # Interned first: a look-up that finds its very key need not compare it.
        ranked = tuple(map(interned, request.context))
        sizes = request.block_tokens
        tokens = dict(zip(ranked, sizes, strict=True))
        total = request.head_tokens + sum(sizes) + request.tail_tokens
        return Wanted(request, ranked, tokens, total, self._candidates(request, ranked, tokens))

    def again(self, wanted: Wanted) -> Wanted:
        """The same request, with what is known by now."""
        candidates = self._candidates(wanted.request, wanted.ranked, wanted.tokens)
        return Wanted(wanted.request, wanted.ranked, wanted.tokens, wanted.total, candidates)

    def held(self, wanted: Wanted, infos: list[ReplicaInfo]) -> list[Held]:
        """What each of these usable replicas will have of it."""
        request = wanted.request
        replicas, queues = self._replicas, self._queues
        asked = believed = replicas.mask
        if len(infos) == 1:
            asked &= 1 << replicas.bit(infos[0].replica)
        matches = best_per_holder(wanted.candidates, asked)
        tree = self._memory.trees.get(request.head)
        of_head = tree.root.holders & believed if tree is not None else 0
        earlier = request.predecessor
        before = self._memory.records.get(earlier) if earlier is not None else None
        head_tokens = request.head_tokens
        head_only, nothing = Held(None, head_tokens), Held(None, 0)
        found: list[Held] = []
        for info in infos:
            replica = info.replica
            bit = 1 << replicas.bit(replica)
            match = matches.get(bit)
            now = nothing
            if of_head & bit:
                now = Held(match, head_tokens + match.tokens) if match is not None else head_only
            elif before is not None and before.replica == replica and believed & bit:
                now = Held(match, min(before.tokens_left, head_tokens))
            queue, capacity = queues.get(replica, IDLE), info.capacity_tokens
            if queue.new_tokens + now.tokens > capacity and tree is not None:
                left = _left(now, queue, tree, head_tokens, capacity)
                now = Held(now.match, now.had, left)
            found.append(now)
        return found

    def most_held(self, request: PlanRequest) -> int:
        """Leading tokens of the prompt that some replica has."""
        held = self.held(self.wanted(request), self._replicas.usable_infos)
        return max((one.tokens for one in held), default=0)

    def prompt(self, wanted: Wanted, *, prefixes: bool) -> Prompt:
        """The request as `joint.lay_out` takes it; replicas in the order of those usable.

        prefixes: whether the window is small enough to be mended, so that they are asked for.
        """
        request = wanted.request
        held = self.held(wanted, self._replicas.usable_infos)
        return Prompt(
            request.head,
            request.head_tokens,
            wanted.tokens,
            wanted.total,
            fixed=not request.movable,
            prefix=[one.match.prefix if prefixes and one.match else () for one in held],
            held=[one.tokens for one in held],
        )

    def order(
        self, wanted: Wanted, replica: ReplicaId, held: Held, followers: Sequence[Context]
    ) -> tuple[Context, int]:
        """Algorithm 2 behind the prefix followed; the held tokens given up (decision 0009).

        followers: contexts that come next to that replica; what they share stands first.
        """
        ranked, tokens = wanted.ranked, wanted.tokens
        if not wanted.request.movable:
            return ranked, 0
        candidates = wanted.candidates
        if not candidates:
            candidates = limited_search(self._offline.root, ranked, tokens, self._limits)
        path = best_path(candidates, self._replicas.bit(replica), self.rest_order.trust)
        given_up = max(0, held.tokens - wanted.request.head_tokens - path.held_tokens)
        if self._search == "paper":
            return order(ranked, path.prefix), given_up
        prefix = path.prefix
        if followers:
            prefix = self._limits.leading(ranked, shared_first(ranked, prefix, followers, tokens))
        return self.rest_order.arrange(ranked, prefix, tokens), given_up

    def _candidates(
        self, request: PlanRequest, context: Context, tokens: dict[BlockId, int]
    ) -> list[Candidate]:
        """Known prefixes that the request could begin with. tokens: of each block."""
        tree = self._memory.trees.get(request.head)
        if tree is None:
            return []
        if not request.movable:
            return fixed_search(tree.root, context, tokens)
        if self._search == "paper" and not self._limits.bind:
            return greedy_search(tree.root, context, tokens, self._alpha)
        familiar = self.rest_order.popular
        return limited_search(tree.root, context, tokens, self._limits, familiar)


def _left(held: Held, queue: Queue, tree: ContextTree, head_tokens: int, capacity: int) -> int:
    """Of what a replica has, the leading tokens that it still has when the line there has gone by.

    The least recently used leaves a cache first, so after its last use there no more is left of a
    prefix than the new tokens of those who come behind leave room for. Those in the line who begin
    with a part of it use that part.
    """
    shared = {tree.root: head_tokens}
    match = held.match
    while match is not None:
        shared[match.node] = head_tokens + match.tokens
        match = match.above
    left, newer = 0, 0
    for request, work in reversed(queue.waiting.items()):
        node = tree.node_of.get(request)
        while node is not None and node not in shared:
            node = node.parent
        if node is not None:
            left = max(left, min(shared[node], capacity - newer))
        newer += work.new
        if left >= min(held.tokens, capacity - newer):
            return min(left, held.tokens)
    return min(held.tokens, capacity - newer)
