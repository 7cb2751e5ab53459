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
from typing import Final, final

import msgspec

from cp_ray.core.node import ContextNode
from cp_ray.core.seen import Lately, Seen, bound, prefixes
from cp_ray.core.types import BlockId, Context, PlanRequest, RequestId, Settled
from cp_ray.core.who_held import Held, Known, who_held
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
MEMORY: Final = 1 << 18
"""Blocks, prefixes, heads and conversations remembered of each kind; about 100 bytes each."""
PENDING: Final = 1 << 16
"""Requests planned and not ended; past it the oldest counts as unsettled."""
LAST: Final = 1 << 12
"""Ended requests whose losses can be asked for; up to twice as many are kept."""


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


@final
class _Open:
    """A request that has not ended. total: of its prompt. holder: bit of the replica it is on."""

    __slots__ = ("held", "holder", "page_size", "planned", "request", "total", "worlds")

    def __init__(self, request: PlanRequest, planned: Context, held: Held, page_size: int) -> None:
        self.request = request
        self.planned = planned
        self.held = held
        self.page_size = page_size
        self.holder = held.own[0]
        self.total: int = request.head_tokens + sum(request.block_tokens) + request.tail_tokens
        self.worlds: tuple[int, int, int, int] = (0, 0, 0, 0)


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
        self._by_cause = [0] * len(CAUSES)
        self._requests = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._beyond_belief = 0
        self._unsettled = 0
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
        held = who_held(index, request, record, node, own_tokens)
        page = index.replicas.live[record.replica].page_size
        self._queue.append(_Open(request, planned, held, page))
        if len(self._queue) > PENDING:
            self._absorb()

    def routed(self, request: RequestId, bit: int) -> None:
        """It really went to this replica; 0 when that is not live."""
        self._absorb()
        if request in self._open:
            self._open[request].holder = 1 << bit if bit else 0

    def settled(self, settled: Settled) -> None:
        """Account for a request that ended, unless it failed or was never planned."""
        self._absorb()
        found = self._open.pop(settled.request_id, None)
        if found is None or not settled.ok:
            return
        cached, here = settled.cached_tokens, found.held.by(found.holder)
        losses = _losses(found, here, cached, settled.held_tokens)
        by_cause = self._by_cause
        for cause, tokens in enumerate(losses):
            by_cause[cause] += tokens
        self._requests += 1
        self._prompt_tokens += found.total
        self._cached_tokens += min(cached, found.total)
        self._beyond_belief += max(0, cached - here)
        self._last.put(settled.request_id, array("I", losses).tobytes())

    def of(self, request: RequestId) -> dict[str, int] | None:
        """Losses of one of the last requests."""
        last = self._last.get(request)
        return None if last is None else dict(zip(CAUSES, array("I", last), strict=True))

    def sums(self) -> Losses:
        """The sums since the start."""
        self._absorb()
        return Losses(
            dict(zip(CAUSES, self._by_cause, strict=True)),
            self._requests,
            self._prompt_tokens,
            self._cached_tokens,
            self._beyond_belief,
            self._unsettled,
        )

    def fill(self) -> tuple[int, int]:
        """Requests whose lengths are remembered for sure, and the most there can be."""
        return self._prompts.fill()

    def check(self) -> None:
        """Raise InvariantError unless the causes add up."""
        if sum(self._by_cause) != self._prompt_tokens - self._cached_tokens:
            raise InvariantError("loss ledger: the causes do not add up to the computed tokens")

    def _absorb(self) -> None:
        while self._queue:
            opened = self._queue.popleft()
            opened.worlds = self._worlds(opened.request, opened.planned, opened.total)
            self._open[opened.request.request_id] = opened
            if len(self._open) > PENDING:
                self._open.popitem(last=False)
                self._unsettled += 1

    def _worlds(
        self, request: PlanRequest, planned: Context, total: int
    ) -> tuple[int, int, int, int]:
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
        for at, block in enumerate(planned):
            size = sizes[block]
            leading = leading and sent[at]
            if own[at] or (elsewhere and elsewhere[at]):
                by_all += size
            if own[at]:
                by_own += size
                if leading:
                    lead += size
                elif block in spoken:
                    repeated += size
        if request.conversation is not None:
            spoken.update(planned)
        self._prompts.put(request.request_id, total)
        return by_all, by_own, max(by_own - repeated, lead), lead

    def _anywhere(self, request: PlanRequest, planned: Context) -> tuple[bool, list[bool]]:
        """Whether any tenant sent the head, and each block; no list where there is one tenant."""
        if not request.origins:
            return False, []
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


def _losses(opened: _Open, here: int, cached: int, thought: int | None) -> list[int]:
    """Losses of one request by the table above, in the order of CAUSES.

    here: tokens that the replica which took it had. cached: that its engine found. thought: that
    it believed to have, if it said so.
    """
    found = min(cached, opened.total)
    pages = min(here, opened.total - 1) // opened.page_size * opened.page_size
    ladder = [*opened.worlds, opened.held.by(-1), here, pages]
    ladder += [pages if thought is None else thought, found]
    losses, above = [], opened.total
    for world in ladder:
        below = min(above, max(world, found))
        losses.append(above - below)
        above = below
    return losses
