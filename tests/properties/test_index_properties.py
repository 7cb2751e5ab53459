"""ContextIndex under any sequence of plans, feedback, reports and changes of the live set."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cp_ray.core.arrivals import Arrivals
from cp_ray.core.index import ContextIndex
from cp_ray.core.types import (
    Arrived,
    BlockId,
    Dump,
    Eviction,
    EvictionReport,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Routed,
    Settled,
)

BLOCKS = [BlockId(str(number)) for number in range(8)]
REPLICAS = [ReplicaId(name) for name in ("r0", "r1", "r2")]
HEADS = [HeadId("h0"), HeadId("h1")]


class IndexMachine(RuleBasedStateMachine):
    travels = False

    def __init__(self) -> None:
        super().__init__()
        arrivals = Arrivals() if self.travels else None
        self.index = ContextIndex(max_records=12, arrivals=arrivals)
        self.now = 0.0
        self.names: list[RequestId] = []
        self.next: dict[ReplicaId, tuple[int, int]] = {}
        self.live: set[ReplicaId] = set()

    @rule(live=st.sets(st.sampled_from(REPLICAS)))
    def set_replicas(self, live: set[ReplicaId]) -> None:
        self.index.set_replicas([ReplicaInfo(name, 16, 1000) for name in sorted(live)])
        for name in self.live - live:
            del self.next[name]
        for name in live - self.live:
            self.next.setdefault(name, (0, 0))  # unless it was heard while absent
        self.live = live

    @rule(
        blocks=st.lists(st.sampled_from(BLOCKS), unique=True, max_size=6),
        head=st.sampled_from(HEADS),
        movable=st.booleans(),
        data=st.data(),
    )
    def plan(self, blocks: list[BlockId], head: HeadId, movable: bool, data: st.DataObject) -> None:
        name = RequestId(f"q{len(self.names)}")
        before = data.draw(st.sampled_from([None, *self.names]))
        self.now += 1.0
        request = PlanRequest(
            name, head, 20, tuple(blocks), (30,) * len(blocks), 5, movable, before
        )
        (step,) = self.index.plan([request], self.now)
        self.names.append(name)
        assert sorted(step.context) == sorted(blocks), "an order is a permutation"
        assert movable or step.context == tuple(blocks)
        assert step.replica is None or step.replica in self.live
        assert (step.replica is None) == (not self.live)
        assert 0 <= step.reused_tokens < 20 + 30 * len(blocks) + 5

    @precondition(lambda self: self.names)
    @rule(data=st.data(), kind=st.integers(0, 4), replica=st.sampled_from(REPLICAS))
    def hear(self, data: st.DataObject, kind: int, replica: ReplicaId) -> None:
        name = data.draw(st.sampled_from(self.names))
        feedback = (
            Routed(name, replica),
            FirstToken(name),
            Settled(name, 16, ok=True, held_tokens=64),
            Settled(name, 0, ok=False),
            Arrived(name),
        )[kind]
        self.index.hear(feedback, self.now)

    @rule(
        replica=st.sampled_from(REPLICAS),
        skip=st.sampled_from([0, 0, 0, 1, -1]),
        new_epoch=st.sampled_from([0, 0, 0, 1]),
        data=st.data(),
    )
    def report(self, replica: ReplicaId, skip: int, new_epoch: int, data: st.DataObject) -> None:
        epoch, seq = self.next.get(replica, (0, 0))
        sent = (epoch + new_epoch, max(0, (0 if new_epoch else seq) + skip))
        evicted = data.draw(
            st.lists(
                st.tuples(st.sampled_from([*self.names, RequestId("none")]), st.integers(0, 200)),
                max_size=4,
            )
        )
        gone = tuple(Eviction(name, left) for name, left in evicted)
        believed = self.index.replicas.believed(replica)
        in_order = self.index.apply(EvictionReport(replica, sent[0], sent[1], gone))
        assert in_order <= (replica in self.live)
        if believed:
            assert in_order == (replica in self.live and sent == (epoch, seq))
        if sent >= (epoch, seq):
            self.next[replica] = (sent[0], sent[1] + 1)

    @rule(
        replica=st.sampled_from(REPLICAS),
        late=st.integers(0, 3),
        held=st.dictionaries(st.integers(0, 30), st.integers(0, 200), max_size=8),
    )
    def dump(self, replica: ReplicaId, late: int, held: dict[int, int]) -> None:
        epoch, seq = self.next.get(replica, (0, 0))
        listed = {RequestId(f"q{number}"): left for number, left in held.items()}
        sent = max(0, seq - late)
        taken = self.index.apply(Dump(replica, epoch, sent, listed))
        if taken or replica not in self.live:
            self.next[replica] = (epoch, max(seq, sent + 1))
        assert not taken or self.index.replicas.believed(replica)

    @rule(wait=st.floats(0.0, 20.0))
    def ask(self, wait: float) -> None:
        self.now += wait
        for request in self.index.dump_requests(self.now):
            assert request.replica in self.live
            assert not self.index.replicas.believed(request.replica)

    @invariant()
    def sound(self) -> None:
        self.index.check()

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.index.counters()["records"] <= 12

    def teardown(self) -> None:
        """After every request has settled and every replica has gone, nothing is left."""
        for name in self.names:
            self.index.hear(Settled(name, 0, ok=True), self.now)
        self.index.set_replicas([])
        self.index.check()
        left = self.index.counters()
        assert (left["records"], left["heads"], left["reserved"]) == (0, 0, 0)


class TravellingPlansMachine(IndexMachine):
    travels = True


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestTravellingPlans = TravellingPlansMachine.TestCase
TestTravellingPlans.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
