"""Where reuse is lost: every prompt token the engine had to compute, by the cause of it.

A ladder of worlds, each one step nearer to what happened; the loss of a cause is what its step
takes away, so that the losses of a request add up to its computed tokens exactly:

| world                                                               | the step down is called |
|---------------------------------------------------------------------|-------------------------|
| every token of the prompt is cached                                 |                         |
| what anybody ever sent: its head, its blocks in any order, for ever | cold                    |
| what its own tenant may see of that                                 | tenant_wall             |
| what stands once in its conversation, or leads the prompt           | missed_deduplication    |
| what leads the prompt in the order sent: one cache, never full      | order                   |
| the longest such prefix that a believed replica had when planned    | evicted                 |
| that of the replica which took the request                          | routed_away             |
| the same in whole engine blocks, the last token always computed     | page                    |
| what the replica itself thought it had when it scheduled            | stale                   |
| what the engine found                                               | unexplained             |

No world is poorer than what the engine found: a token that was found was lost by no cause. Tokens
found beyond what the index believed are counted apart (`beyond_belief`). A replica that is gone,
or in doubt, has nothing: that is `evicted`. Without the replica's own account, `stale` cannot be
told from `unexplained` and counts there.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from cp_ray.core.node import ContextNode
from cp_ray.core.record import Record
from cp_ray.core.replicas import ReplicaTable
from cp_ray.core.seen import Lately, Seen, bound, prefixes
from cp_ray.core.types import BlockId, Context, PlanRequest, RequestId, Settled
from cp_ray.errors import InvariantError

CAUSES = (
    "cold",
    "tenant_wall",
    "missed_deduplication",
    "order",
    "evicted",
    "routed_away",
    "page",
    "stale",
    "unexplained",
)
MEMORY = 1 << 18
"""Blocks, prefixes, heads and conversations remembered of each kind; about 100 bytes each."""
PENDING = 1 << 16
"""Requests planned and not ended; past it the oldest counts as unsettled."""
LAST = 1 << 12
"""Ended requests whose losses can be asked for; up to twice as many are kept."""


class Known(Protocol):
    """What the accounts look up in the index."""

    @property
    def records(self) -> Mapping[RequestId, Record]:
        """What is remembered of each request."""

    @property
    def replicas(self) -> ReplicaTable:
        """Who is live, and believed."""


class Held(msgspec.Struct, frozen=True, gc=False):
    """Who had how much of a prompt, in the order planned, when it was planned. Tokens of prompt.

    own: (holder bit, tokens) of the replica it was planned to. runs: (tokens, holder bits of
    others) of growing prefixes, head included. before: (tokens, holder bit) of the request whose
    prompt the head extends. believed: bits of the replicas that count.
    """

    own: tuple[int, int]
    runs: tuple[tuple[int, int], ...]
    before: tuple[int, int]
    believed: int

    def by(self, bits: int) -> int:
        """Tokens that the best of `bits` had."""
        bits &= self.believed
        best = self.before[0] if self.before[1] & bits else 0
        if self.own[0] & bits:
            best = max(best, self.own[1])
        return max([best, *(tokens for tokens, holders in self.runs if holders & bits)])


class Losses(msgspec.Struct):
    """Sums of tokens. `by_cause` adds up to `prompt_tokens - cached_tokens`."""

    by_cause: dict[str, int]
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    beyond_belief: int = 0
    unsettled: int = 0

    def unexplained_share(self) -> float:
        """Share of the lost tokens without a cause; the promise is at most 1%."""
        lost = self.prompt_tokens - self.cached_tokens
        return self.by_cause["unexplained"] / lost if lost else 0.0


class _Open(msgspec.Struct, gc=False):
    request: PlanRequest
    planned: Context
    held: Held
    page_size: int
    holder: int  # bit of the replica that took it
    worlds: tuple[int, int, int, int] = (0, 0, 0, 0)


class LossLedger:
    """Owner of what was ever sent, bounded, and of the sums.

    It reads nothing while a plan is made: `planned` only queues, the rest follows in order.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self._queue: deque[_Open] = deque()
        self._open: OrderedDict[RequestId, _Open] = OrderedDict()
        self._heads: Seen = Seen(memory)
        self._blocks: Seen = Seen(memory)
        self._origins: Seen = Seen(memory)
        self._prefixes: Seen = Seen(memory)
        self._prompts: Lately[int] = Lately(memory // 2)
        self._conversations: OrderedDict[str, set[BlockId]] = OrderedDict()
        self._memory = memory
        self._sums = Losses(dict.fromkeys(CAUSES, 0))
        self._last: Lately[bytes] = Lately(min(LAST, memory // 2))

    def planned(
        self,
        index: Known,
        request: PlanRequest,
        planned: Context,
        node: ContextNode,
        own_tokens: int,
    ) -> None:
        """A request was just put at `node`, in this order.

        own_tokens: what the replica it was planned to had of its prompt.
        """
        record = index.records[request.request_id]
        held = _who_held(index, request, record, node, own_tokens)
        page = index.replicas.live[record.replica].page_size
        self._queue.append(_Open(request, planned, held, page, held.own[0]))
        if len(self._queue) > PENDING:
            self._absorb()

    def routed(self, request: RequestId, bit: int) -> None:
        """It really went to this replica; 0 when that is not live."""
        self._absorb()
        if request in self._open:
            self._open[request].holder = 1 << bit if bit else 0

    def settled(self, settled: Settled) -> dict[str, int] | None:
        """Account for a request that ended; None when it failed or was never planned."""
        self._absorb()
        found = self._open.pop(settled.request_id, None)
        if found is None or not settled.ok:
            return None
        losses = account(found, settled)
        sums = self._sums
        for cause, tokens in losses.items():
            sums.by_cause[cause] += tokens
        total = _total(found.request)
        sums.requests += 1
        sums.prompt_tokens += total
        sums.cached_tokens += min(settled.cached_tokens, total)
        sums.beyond_belief += max(0, settled.cached_tokens - found.held.by(found.holder))
        self._last.put(settled.request_id, array("I", losses.values()).tobytes())
        return losses

    def of(self, request: RequestId) -> dict[str, int] | None:
        """Losses of one of the last requests."""
        last = self._last.get(request)
        return None if last is None else dict(zip(CAUSES, array("I", last), strict=True))

    def sums(self) -> Losses:
        """A copy of the sums since the start."""
        self._absorb()
        return msgspec.structs.replace(self._sums, by_cause=dict(self._sums.by_cause))

    def fill(self) -> tuple[int, int]:
        """Requests whose lengths are remembered for sure, and the most there can be."""
        return self._prompts.fill()

    def check(self) -> None:
        """Raise InvariantError unless the causes add up."""
        sums = self._sums
        if sum(sums.by_cause.values()) != sums.prompt_tokens - sums.cached_tokens:
            raise InvariantError("loss ledger: the causes do not add up to the computed tokens")

    def _absorb(self) -> None:
        while self._queue:
            opened = self._queue.popleft()
            opened.worlds = self._worlds(opened.request, opened.planned)
            self._open[opened.request.request_id] = opened
            if len(self._open) > PENDING:
                self._open.popitem(last=False)
                self._sums.unsettled += 1

    def _worlds(self, request: PlanRequest, planned: Context) -> tuple[int, int, int, int]:
        """Tokens of the first four worlds below "every token", and remember the request."""
        sizes = dict(zip(request.context, request.block_tokens, strict=True))
        before = (self._prompts.get(request.predecessor) or 0) if request.predecessor else 0
        (known_head,) = self._heads.meet((request.head,))
        head = request.head_tokens if known_head else min(before, request.head_tokens)
        own = self._blocks.meet(planned)
        sent = self._prefixes.meet(prefixes(request.head, planned))
        anywhere, elsewhere = self._anywhere(request, planned)
        spoken = self._spoken(request.conversation)
        by_all = request.head_tokens if known_head or anywhere else head
        by_own = lead = head
        repeated = 0
        leading = known_head
        for block, known, in_place, known_elsewhere in zip(
            planned, own, sent, elsewhere, strict=True
        ):
            size = sizes[block]
            leading = leading and in_place
            if known or known_elsewhere:
                by_all += size
            if known:
                by_own += size
                if leading:
                    lead += size
                elif block in spoken:
                    repeated += size
        if request.conversation is not None:
            spoken.update(planned)
        self._prompts.put(request.request_id, _total(request))
        return by_all, by_own, max(by_own - repeated, lead), lead

    def _anywhere(self, request: PlanRequest, planned: Context) -> tuple[bool, Sequence[bool]]:
        """Whether any tenant sent the head, and each block."""
        if not request.origins:
            return False, (False,) * len(planned)
        head, *blocks = self._origins.meet(request.origins)
        known = dict(zip(request.context, blocks, strict=True))
        return head, [known[block] for block in planned]

    def _spoken(self, conversation: str | None) -> set[BlockId]:
        if conversation is None:
            return set()
        spoken = self._conversations.setdefault(conversation, set())
        self._conversations.move_to_end(conversation)
        bound(self._conversations, self._memory >> 6)
        return spoken


def account(opened: _Open, settled: Settled) -> dict[str, int]:
    """Losses of one request by cause, by the table above."""
    total = _total(opened.request)
    found = min(settled.cached_tokens, total)
    anybody = opened.held.by(-1)
    here = opened.held.by(opened.holder)
    pages = min(here, total - 1) // opened.page_size * opened.page_size
    thought = pages if settled.held_tokens is None else settled.held_tokens
    losses, above = {}, total
    ladder = (*opened.worlds, anybody, here, pages, thought, found)
    for cause, world in zip(CAUSES, ladder, strict=True):
        below = min(above, max(world, found))
        losses[cause] = above - below
        above = below
    return losses


def _who_held(
    index: Known, request: PlanRequest, record: Record, node: ContextNode, own_tokens: int
) -> Held:
    replicas = index.replicas
    own = 1 << replicas.bit(record.replica)
    before = (0, 0)
    earlier = index.records.get(request.predecessor) if request.predecessor else None
    if earlier is not None and earlier.replica in replicas.live:
        before = min(earlier.tokens_left, request.head_tokens), 1 << replicas.bit(earlier.replica)
    runs = []
    at: ContextNode | None = node
    while at is not None:
        others = at.holders & ~own
        if others:
            runs.append((request.head_tokens + record.tokens_of(at.depth), others))
        at = at.parent
    return Held((own, own_tokens), tuple(runs), before, replicas.mask)


def _total(request: PlanRequest) -> int:
    return request.head_tokens + sum(request.block_tokens) + request.tail_tokens
