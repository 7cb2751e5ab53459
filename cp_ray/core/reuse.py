"""What the fleet can reuse of a request, and the order of blocks that reuses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, final

import msgspec

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
from cp_ray.core.types import BlockId, Context, PlanRequest, ReplicaId


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """A request to be planned. tokens: of each block. total: of the whole prompt."""

    request: PlanRequest
    tokens: dict[BlockId, int]
    total: int
    candidates: list[Candidate]


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
        queues: Mapping[ReplicaId, Queue],
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
        tokens = dict(zip(request.context, request.block_tokens, strict=True))
        total = request.head_tokens + sum(request.block_tokens) + request.tail_tokens
        return Wanted(request, tokens, total, self.candidates(request, tokens))

    def held(self, wanted: Wanted) -> dict[ReplicaId, Held]:
        """What each live replica will have of it."""
        replicas, memory, request = self._replicas, self._memory, wanted.request
        live = replicas.live
        matches = best_per_holder(wanted.candidates, replicas.mask)
        tree = memory.trees.get(request.head)
        of_head = tree.root.holders if tree is not None else 0
        before = memory.records.get(request.predecessor) if request.predecessor else None
        head_only, nothing = Held(None, request.head_tokens), Held(None, 0)
        found: dict[ReplicaId, Held] = {}
        head_tokens = request.head_tokens
        believed = replicas.mask
        for replica, bit in replicas.usable_bits:
            match = matches.get(bit)
            if not believed >> bit & 1:
                found[replica] = nothing
            elif of_head >> bit & 1:
                found[replica] = Held(match, head_tokens + match.tokens) if match else head_only
            elif before is not None and before.replica == replica:
                found[replica] = Held(match, min(before.tokens_left, request.head_tokens))
            else:
                found[replica] = nothing
            queue = self._queues.get(replica, IDLE)
            capacity = live[replica].capacity_tokens
            if queue.new_tokens + (now := found[replica]).tokens > capacity and tree is not None:
                left = _left(now, queue, tree, head_tokens, capacity)
                found[replica] = Held(now.match, now.had, left)
        return found

    def most_held(self, request: PlanRequest) -> int:
        """Leading tokens of the prompt that some replica has."""
        return max((one.tokens for one in self.held(self.wanted(request)).values()), default=0)

    def prompt(self, wanted: Wanted) -> Prompt:
        """The request as `joint.lay_out` takes it; replicas in the order of those usable."""
        request = wanted.request
        found = self.held(wanted)
        held = [found[replica] for replica in self._replicas.usable]
        return Prompt(
            request.head,
            request.head_tokens,
            wanted.tokens,
            wanted.total,
            not request.movable,
            [one.match.prefix if one.match else () for one in held],
            [one.tokens for one in held],
        )

    def order(
        self, wanted: Wanted, replica: ReplicaId, held: Held, followers: Sequence[Context]
    ) -> tuple[Context, int]:
        """Algorithm 2 behind the prefix followed; the held tokens given up (decision 0009).

        followers: contexts that come next to that replica; what they share stands first.
        """
        request, tokens = wanted.request, wanted.tokens
        ranked = tuple(map(interned, request.context))
        if not request.movable:
            return ranked, 0
        candidates = wanted.candidates
        if not candidates:
            candidates = limited_search(self._offline.root, ranked, tokens, self._limits)
        path = best_path(candidates, self._replicas.bit(replica), self.rest_order.trust)
        given_up = max(0, held.tokens - request.head_tokens - path.held_tokens)
        if self._search == "paper":
            return order(ranked, path.prefix), given_up
        prefix = path.prefix
        if followers:
            prefix = self._limits.leading(ranked, shared_first(ranked, prefix, followers, tokens))
        return self.rest_order.arrange(ranked, prefix, tokens), given_up

    def candidates(self, request: PlanRequest, tokens: dict[BlockId, int]) -> list[Candidate]:
        """Known prefixes that the request could begin with. tokens: of each block."""
        tree = self._memory.trees.get(request.head)
        if tree is None:
            return []
        if not request.movable:
            return fixed_search(tree.root, request.context, tokens)
        if self._search == "paper" and not self._limits.bind:
            return greedy_search(tree.root, request.context, tokens, self._alpha)
        familiar = self.rest_order.popular
        return limited_search(tree.root, request.context, tokens, self._limits, familiar)


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
