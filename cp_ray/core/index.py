"""ContextIndex: the one stateful object. Plans requests, hears what became of them.

A forest: one context tree per head, because a prompt is reusable only behind the same head. The
branch `(head, search_path[0])` is the unit of grouping, so a shared head never sends all traffic
into one group. The index is advisory: what it does not know it treats as not held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from cp_ray.core.distance import DEFAULT_ALPHA
from cp_ray.core.interned import interned
from cp_ray.core.limits import Limits, limited_search
from cp_ray.core.load import LoadLedger
from cp_ray.core.loss import LossLedger
from cp_ray.core.memory import Memory
from cp_ray.core.offline import OfflineOrders
from cp_ray.core.ordering import order
from cp_ray.core.path import best_path
from cp_ray.core.placement import Option, Utilisation, choose
from cp_ray.core.record import Record, State, record_of
from cp_ray.core.remembered import RememberedOrders
from cp_ray.core.replicas import ReplicaTable, Verdict
from cp_ray.core.rest_order import RestOrder
from cp_ray.core.search import Candidate, best_per_holder, fixed_search, greedy_search
from cp_ray.core.trust import Trust, TrustLedger
from cp_ray.core.types import (
    BlockId,
    Context,
    Dump,
    DumpRequest,
    Feedback,
    FirstToken,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    ReplicaMessage,
    Routed,
    Settled,
    Step,
)
from cp_ray.core.window_order import held_tokens, plan_in_turn

REMEMBERED = 10_000
"""Evicted orders kept: some 1 KB each."""


class ContextIndex:
    """All trees, records, replicas and load; every public method leaves `check()` true.

    search: "exact" for serving, "paper" for Algorithm 1. max_records bounds memory: past it the
    oldest record is forgotten. offline: orders to start warm from. limits: how far blocks move.
    """

    def __init__(
        self,
        alpha: float = DEFAULT_ALPHA,
        search: Literal["exact", "paper"] = "exact",
        max_records: int = 100_000,
        offline: OfflineOrders | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.alpha = alpha
        self.replicas = ReplicaTable()
        self.trust = TrustLedger()
        self.ledger = LoadLedger()
        self.utilisation = Utilisation()
        self.offline = offline or OfflineOrders()
        self.limits = limits or Limits()
        self.rest_order = RestOrder(limits=self.limits)
        self.losses = LossLedger()
        self._search = search
        self.max_records = max_records
        self.memory = Memory(RememberedOrders(REMEMBERED))
        self._trees = self.memory.trees
        self._records = self.memory.records
        self._assigned: Counter[ReplicaId] = Counter()
        self.trees, self.records, self.assigned = self._trees, self._records, self._assigned
        self._counters: Counter[str] = Counter()

    def set_replicas(self, infos: Sequence[ReplicaInfo]) -> None:
        """Follow the live set; what left is forgotten, and so is its load."""
        for replica in self.replicas.set_live(infos):
            self._forget(replica)
            self.ledger.drop_replica(replica)
            self.replicas.drop(replica)
            self.trust.restore(replica)
            self._assigned.pop(replica, None)

    def plan(self, requests: Sequence[PlanRequest], now: float) -> list[Step]:
        """One step per request, in the order of sending; each sees those before it.

        now: seconds, any origin, not decreasing.
        """
        for request in self.ledger.sweep(now):
            self._counters["leases_swept"] += 1
            record = self._records.get(request)
            if record is not None and record.state is State.PLANNED:
                self.memory.remove(request)  # perhaps never prefilled: no report would clear it
        self.utilisation.observe(self.ledger.busy_share(len(self.replicas.live)), now)
        if len(requests) > 1 and self._search == "exact":
            return plan_in_turn(
                requests,
                sum(info.capacity_tokens for info in self.replicas.live.values()),
                lambda one: held_tokens(one, self.memory, self._candidates),
                lambda one: self._plan_one(one, now),
            )
        return [self._plan_one(request, now) for request in requests]

    def _plan_one(self, request: PlanRequest, now: float) -> Step:
        self._counters["planned"] += 1
        if not self.replicas.live or request.request_id in self._records:
            self._counters["passed_through"] += 1
            return Step(request.request_id, request.context, None, "", (), 0, "passthrough")
        tokens = dict(zip(request.context, request.block_tokens, strict=True))
        candidates = self._candidates(request, tokens)
        best = best_per_holder(candidates, self.replicas.mask)
        total = request.head_tokens + sum(request.block_tokens) + request.tail_tokens
        most: dict[ReplicaId, int] = {}
        options = []
        for replica in self.replicas.usable:
            match = best.get(self.replicas.bit(replica))
            most[replica] = reusable = self._reusable(request, replica, match)
            wait, running = self.ledger.prefill_tokens(replica), self.ledger.running(replica)
            missing, assigned = total - reusable, self._assigned[replica]
            options.append(Option(replica, wait, missing, running, assigned))
        price = self.utilisation.price(self.ledger.busy_share(len(self.replicas.live)))
        chosen = choose(options, price).replica
        match = best.get(self.replicas.bit(chosen))
        planned, given_up = self._order(request, tokens, candidates, match, chosen)
        reusable = most[chosen] - given_up
        page = self.replicas.live[chosen].page_size
        predicted = min(reusable, total - 1) // page * page
        self._remember(request, record_of(request, planned, tokens, chosen, predicted), planned)
        node = self._trees[request.head].node_of[request.request_id]
        self.losses.planned(self, request, planned, node, reusable)
        self.ledger.reserve(request.request_id, chosen, total - reusable, now)
        self._assigned[chosen] += 1
        path = node.search_path
        return Step(
            request_id=request.request_id,
            context=planned,
            replica=chosen,
            branch=f"{request.head}/{path[0]}" if path else str(request.head),
            search_path=path,
            reused_tokens=predicted,
            reason="holder" if predicted else "load",
        )

    def _candidates(self, request: PlanRequest, tokens: dict[BlockId, int]) -> list[Candidate]:
        tree = self._trees.get(request.head)
        if tree is None:
            return []
        if not request.movable:
            return fixed_search(tree.root, request.context, tokens)
        if self._search == "paper" and not self.limits.bind:
            return greedy_search(tree.root, request.context, tokens, self.alpha)
        familiar = self.rest_order.popular
        return limited_search(tree.root, request.context, tokens, self.limits, familiar)

    def _order(
        self,
        request: PlanRequest,
        tokens: dict[BlockId, int],
        candidates: list[Candidate],
        match: Candidate | None,
        chosen: ReplicaId,
    ) -> tuple[Context, int]:
        """Algorithm 2 behind the prefix followed; the held tokens given up (decision 0009)."""
        if not request.movable:
            return tuple(map(interned, request.context)), 0
        if not candidates:
            candidates = limited_search(self.offline.root, request.context, tokens, self.limits)
        path = best_path(candidates, self.replicas.bit(chosen), self.rest_order.trust)
        given_up = match.tokens - path.held_tokens if match else 0
        if self._search == "paper":
            context = tuple(map(interned, request.context))
            return order(context, path.prefix), given_up
        return self.rest_order.arrange(request.context, path.prefix, tokens), given_up

    def _reusable(self, request: PlanRequest, replica: ReplicaId, match: Candidate | None) -> int:
        """Leading prompt tokens that `replica` should have of this request."""
        if not self.replicas.believed(replica):
            return 0
        tree = self._trees.get(request.head)
        if tree is not None and tree.root.holders >> self.replicas.bit(replica) & 1:
            return request.head_tokens + (match.tokens if match else 0)
        before = self._records.get(request.predecessor) if request.predecessor else None
        if before is not None and before.replica == replica:
            return min(before.tokens_left, request.head_tokens)
        return 0

    def hear(self, feedback: Feedback, now: float) -> None:
        """Take what became of a step; unknown requests are counted, frees repeat safely."""
        request = feedback.request_id
        record = self._records.get(request)
        if isinstance(feedback, Routed):
            live = feedback.replica in self.replicas.live
            self.losses.routed(request, self.replicas.bit(feedback.replica) if live else 0)
            self._routed(feedback, record)
        elif isinstance(feedback, FirstToken):
            self.ledger.prefill_done(request, now)
        else:
            self.losses.settled(feedback)
            self.ledger.free(request)
            if record is None:
                self._counters["unknown_feedback"] += 1
            elif not feedback.ok:
                self.memory.remove(request)
            else:
                record.state = State.RESIDENT
                self._audit(feedback, record)

    def _audit(self, settled: Settled, record: Record) -> None:
        """The gate is the replica's view when the engine scheduled; the plan's is only counted."""
        replica = record.replica
        page = self.replicas.live[replica].page_size
        planned_right = abs(record.predicted - settled.cached_tokens) <= page
        self._counters["predicted_tokens"] += record.predicted
        self._counters["cached_tokens"] += settled.cached_tokens
        self._counters["planned_within_one_block"] += planned_right
        self._counters["settled"] += 1
        if settled.held_tokens is None or not self.replicas.believed(replica):
            return
        matches = abs(settled.held_tokens - settled.cached_tokens) <= page
        self._counters["audited"] += 1
        self._counters["audit_mismatches"] += not matches
        if self.trust.audit(replica, matches=matches) is Trust.QUARANTINED:
            self._counters["replicas_quarantined"] += 1
            self.replicas.distrust(replica)

    def _routed(self, feedback: Routed, record: Record | None) -> None:
        if record is None or record.replica == feedback.replica:
            return
        self._counters["spilled"] += 1
        self.ledger.move(feedback.request_id, feedback.replica, record.tokens_left)
        if feedback.replica not in self.replicas.live:
            self.memory.remove(feedback.request_id)
            return
        record.predicted = 0
        bit = self.replicas.bit(feedback.replica)
        self.memory.move(feedback.request_id, feedback.replica, bit)

    def apply(self, message: ReplicaMessage) -> bool:
        """Take a report or a dump; False when it was ignored or told that one was lost."""
        verdict = self.replicas.receive(message)
        self._counters[f"reports_{verdict.value}"] += 1
        if verdict in (Verdict.UNKNOWN, Verdict.STALE):
            return False
        if verdict is Verdict.NEW_EPOCH:
            self._forget(message.replica)
        if isinstance(message, Dump):
            self.memory.keep_only(message.replica, message.held)
            self.trust.restore(message.replica)
            return True
        for eviction in message.evicted:
            record = self._records.get(eviction.request_id)
            if record is None or record.replica != message.replica:
                self._counters["unknown_evictions"] += 1
                self.memory.evicted_early(message.replica, eviction)
                continue
            self._counters["evictions"] += 1
            self.memory.shrink(eviction.request_id, eviction.tokens_left)
        return verdict is Verdict.APPLY

    def dump_requests(self, now: float) -> tuple[DumpRequest, ...]:
        """Whom to ask for a dump now; forgets those that were asked in vain.

        Call it after every gap, and about once a second: it repeats what was not answered.
        """
        due = self.replicas.due(now)
        for replica in due.forget:
            self._forget(replica)
        return due.ask

    def build(self, contexts: Sequence[Context]) -> list[Step]:
        """Algorithm 4, offline mode: cluster, and keep the orders for every head."""
        return self.offline.build(contexts, self.alpha)

    def counters(self) -> dict[str, int]:
        """Counts since the start, and sizes now."""
        sizes = {"records": len(self._records), "heads": len(self._trees)}
        return dict(self._counters) | sizes | {"reserved": len(self.ledger)}

    def _remember(self, request: PlanRequest, record: Record, planned: Context) -> None:
        bit = self.replicas.bit(record.replica)
        self.memory.remember(request.request_id, record, planned, bit)
        if len(self._records) > self.max_records:
            self._counters["records_over_capacity"] += 1
            self.memory.remove(next(iter(self._records)))

    def _forget(self, replica: ReplicaId) -> None:
        """Believe nothing of the replica any more; its running requests keep their load."""
        self.memory.forget(replica)
        self.trust.restore(replica)
        self._counters["replicas_forgotten"] += 1

    def check(self) -> None:
        """Raise InvariantError unless every part holds and all parts agree."""
        self.replicas.check()
        self.trust.check()
        self.ledger.check()
        self.offline.check()
        self.rest_order.check()
        self.losses.check()
        self.memory.check(self.replicas)
