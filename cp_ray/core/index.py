"""ContextIndex: the one stateful object. Plans requests, hears what became of them.

A forest: one context tree per head, because a prompt is reusable only behind the same head. The
branch `(head, search_path[0])` is the unit of grouping, so a shared head never sends all traffic
into one group. The index is advisory: what it does not know it treats as not held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from cp_ray.core.arrivals import Arrivals
from cp_ray.core.distance import DEFAULT_ALPHA
from cp_ray.core.fleet_load import FleetLoad
from cp_ray.core.joint import CHUNK
from cp_ray.core.limits import Limits
from cp_ray.core.loss import MEMORY, LossLedger
from cp_ray.core.memory import Memory
from cp_ray.core.offline import OfflineOrders
from cp_ray.core.placement import choose, shortest_wait_s
from cp_ray.core.record import Record, State, record_of
from cp_ray.core.remembered import RememberedOrders
from cp_ray.core.replicas import ReplicaTable, Verdict
from cp_ray.core.reuse import Reuse
from cp_ray.core.trust import Trust, TrustLedger
from cp_ray.core.types import (
    Arrived,
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
from cp_ray.core.window_layout import Laid, lay_out_window
from cp_ray.core.window_order import held_first

REMEMBERED = 10_000
"""Evicted orders kept: some 1 KB each."""


class ContextIndex:
    """All trees, records, replicas and load; every public method leaves `check()` true.

    search: "exact" for serving, "paper" for Algorithm 1. max_records bounds memory: past it the
    oldest record is forgotten. offline: orders to start warm from. limits: how far blocks move.
    arrivals: where plans travel with their requests, and may be lost.
    """

    def __init__(
        self,
        alpha: float = DEFAULT_ALPHA,
        search: Literal["exact", "paper"] = "exact",
        max_records: int = 100_000,
        offline: OfflineOrders | None = None,
        limits: Limits | None = None,
        *,
        arrivals: Arrivals | None = None,
    ) -> None:
        self.alpha = alpha
        self.replicas = ReplicaTable()
        self.trust = TrustLedger()
        self.load = FleetLoad()
        self.offline = offline or OfflineOrders()
        self.limits = limits or Limits()
        self.arrivals = arrivals
        self.losses = LossLedger(min(MEMORY, 2 * max_records))
        self._joint = search == "exact"
        self.max_records = max_records
        self.memory = Memory(RememberedOrders(min(REMEMBERED, max_records)))
        self.reuse = Reuse(
            self.memory,
            self.replicas,
            self.load.ledger.queues,
            offline=self.offline,
            search=search,
            alpha=alpha,
            limits=self.limits,
        )
        self.rest_order = self.reuse.rest_order
        self.trees = self._trees = self.memory.trees
        self.records = self._records = self.memory.records
        self._counters: Counter[str] = Counter()

    def set_replicas(self, infos: Sequence[ReplicaInfo]) -> None:
        """Follow the live set; what left is forgotten, and so is its load."""
        for replica in self.replicas.set_live(infos):
            self._forget(replica)
            self.load.drop_replica(replica)
            self.replicas.drop(replica)
            self.trust.restore(replica)

    def plan(
        self, requests: Sequence[PlanRequest], now: float, only: ReplicaId | None = None
    ) -> list[Step]:
        """One step per request, in the order of sending; each sees those before it.

        Requests planned together are laid out together; a large window that does not fit beside
        what is held goes held first. now: seconds, any origin, not decreasing.
        only: a usable replica (another router's choice); orders are planned for it.
        """
        self._take_back(now)
        if len(requests) < 2 or not self._joint or only is not None:
            return [self._plan_one(Laid(request, only), now) for request in requests]
        capacity = sum(info.capacity_tokens for info in self.replicas.live.values())
        in_turn = held_first(requests, capacity, self.reuse.most_held)
        steps: list[Step] = []
        for start in range(0, len(in_turn), CHUNK):
            window, infos = in_turn[start : start + CHUNK], self.replicas.usable_infos
            laid_out = lay_out_window(window, self.reuse, self.load, infos, now)
            steps += [self._plan_one(laid, now) for laid in laid_out]
        return steps

    def _plan_one(self, laid: Laid, now: float) -> Step:
        request = laid.request
        name = request.request_id
        self._counters["planned"] += 1
        if not self.replicas.live or name in self._records:
            self._counters["passed_through"] += 1
            return Step(name, request.context, None, "", (), 0, "passthrough")
        before = laid.wanted
        wanted = self.reuse.wanted(request) if before is None else self.reuse.again(before)
        live = self.replicas.live
        infos = self.replicas.usable_infos if laid.replica is None else [live[laid.replica]]
        held = self.reuse.held(wanted, infos)
        options = self.load.options(infos, [one.tokens for one in held], wanted.total, now)
        congestion = self.load.congestion
        price = congestion.price(shortest_wait_s(options))
        option = choose(options, price, congestion.usual_s)
        chosen, there = option.replica, held[options.index(option)]
        planned, given_up = self.reuse.order(wanted, chosen, there, laid.followers)
        reusable = there.tokens - given_up
        page = live[chosen].page_size
        predicted = min(reusable, wanted.total - 1) // page * page
        self._remember(
            request, record_of(request, planned, wanted.tokens, chosen, predicted), planned
        )
        node = self._trees[request.head].node_of[name]
        self.losses.planned(self, request, planned, node, there.had - given_up)
        missing = wanted.total - reusable
        work = self.load.reserve(name, option, reusable, missing, now=now, replicas=len(live))
        if self.arrivals is not None:
            self.arrivals.planned(name, now)
        path = node.search_path
        return Step(
            request_id=name,
            context=planned,
            replica=chosen,
            branch=f"{request.head}/{path[0]}" if path else str(request.head),
            search_path=path,
            reused_tokens=predicted,
            reason="holder" if predicted else "load",
            estimated_ttft_s=work.ttft_s,
            estimated_prefill_s=work.seconds,
        )

    def _take_back(self, now: float) -> None:
        """Forget requests past their lease, and plans that have arrived nowhere."""
        swept = self.load.ledger.sweep(now)
        lost = self.arrivals.lost(now) if self.arrivals is not None else []
        self._counters["leases_swept"] += len(swept)
        self._counters["plans_lost"] += len(lost)
        for request in lost:
            self.load.ended(request, now)
        for request in (*swept, *lost):
            record = self._records.get(request)
            if record is not None and record.state is State.PLANNED:
                self.memory.remove(request)  # perhaps never prefilled: no report clears it

    def hear(self, feedback: Feedback, now: float) -> None:
        """Take what became of a step; unknown requests are counted, frees repeat safely."""
        request = feedback.request_id
        if self.arrivals is not None:
            self.arrivals.heard(request)
        if isinstance(feedback, Arrived):
            return
        record = self._records.get(request)
        if isinstance(feedback, Routed):
            is_live = feedback.replica in self.replicas.live
            self.losses.routed(request, self.replicas.bit(feedback.replica) if is_live else 0)
            self._routed(feedback, record, now)
        elif isinstance(feedback, FirstToken):
            self.load.first_token(request, self.replicas.live, now)
        else:
            self.losses.settled(feedback)
            self.load.ended(request, now)
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

    def _routed(self, feedback: Routed, record: Record | None, now: float) -> None:
        if record is None or record.replica == feedback.replica:
            return
        self._counters["spilled"] += 1
        info = self.replicas.live.get(feedback.replica)
        self.load.moved(feedback.request_id, info, record.tokens_left, now)
        if info is None:
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
        return dict(self._counters) | sizes | self.load.counters()

    def _remember(self, request: PlanRequest, record: Record, planned: Context) -> None:
        bit = self.replicas.bit(record.replica)
        self.memory.remember(request.request_id, record, planned, bit)
        if len(self._records) > self.max_records:
            self._counters["records_over_capacity"] += 1
            self.memory.remove_oldest()

    def _forget(self, replica: ReplicaId) -> None:
        """Believe nothing of the replica any more; its running requests keep their load."""
        self.memory.forget(replica)
        self.trust.restore(replica)
        self._counters["replicas_forgotten"] += 1

    def check(self) -> None:
        """Raise InvariantError unless every part holds and all parts agree."""
        self.replicas.check()
        self.trust.check()
        self.load.check()
        self.offline.check()
        self.rest_order.check()
        self.losses.check()
        if self.arrivals is not None:
            self.arrivals.check()
        self.memory.check(self.replicas)
