"""Index and replica over a channel that loses, duplicates, delays and reorders.

In the end, and whenever a replica is believed with nothing on its way, every record either equals
what in-order delivery would have left of it, or is forgotten.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cp_ray.core.index import ContextIndex
from cp_ray.core.replicas import RESYNC_S
from cp_ray.core.types import (
    BlockId,
    Dump,
    DumpRequest,
    Eviction,
    EvictionReport,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    ReplicaMessage,
    RequestId,
    Settled,
)

R = ReplicaId("r")
HEAD, BLOCK = 10, 30


class Replica:
    """What a replica holds, and how it numbers what it says."""

    def __init__(self) -> None:
        self.held: dict[RequestId, int] = {}
        self.epoch = self.seq = 0

    def lose(self, losses: dict[RequestId, int]) -> EvictionReport:
        evicted = []
        for request, left in losses.items():
            if left < self.held.get(request, 0):
                evicted.append(Eviction(request, left))
                self.held[request] = left
                if not left:
                    del self.held[request]
        return EvictionReport(R, self.epoch, self._number(), tuple(evicted))

    def begin_anew(self) -> EvictionReport:
        self.held.clear()
        self.epoch, self.seq = self.epoch + 1, 0
        return EvictionReport(R, self.epoch, self._number(), ())

    def dump(self) -> Dump:
        return Dump(R, self.epoch, self._number(), dict(self.held))

    def _number(self) -> int:
        self.seq += 1
        return self.seq - 1


class ChannelMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = ContextIndex()
        self.index.set_replicas([ReplicaInfo(R, 1, 10_000)])
        self.replica = Replica()
        self.on_its_way: list[ReplicaMessage] = []
        self.names: list[RequestId] = []
        self.now = 0.0
        self.faults = 0

    @rule(blocks=st.lists(st.integers(0, 5), unique=True, max_size=4))
    def serve(self, blocks: list[int]) -> None:
        # A new epoch on its way will make the index forget this request, too: sound, not equal.
        self.faults += any(message.epoch and not message.seq for message in self.on_its_way)
        name = RequestId(f"q{len(self.names)}")
        context = tuple(BlockId(str(block)) for block in blocks)
        lengths = (BLOCK,) * len(context)
        self.index.plan([PlanRequest(name, HeadId("h"), HEAD, context, lengths, 5)], self.now)
        self.replica.held[name] = HEAD + BLOCK * len(context) + 5
        self.index.hear(FirstToken(name), self.now)
        self.index.hear(Settled(name, 0, ok=True), self.now)
        self.names.append(name)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        if self.names:
            losses = st.dictionaries(st.sampled_from(self.names), st.integers(0, 100), max_size=3)
            self.on_its_way.append(self.replica.lose(data.draw(losses)))

    @rule()
    def reset(self) -> None:
        self.on_its_way.append(self.replica.begin_anew())

    @rule(count=st.integers(1, 5))
    def deliver_in_order(self, count: int) -> None:
        for message in self.on_its_way[:count]:
            self.index.apply(message)
        del self.on_its_way[:count]

    @rule(data=st.data(), again=st.booleans())
    def deliver_out_of_turn(self, data: st.DataObject, again: bool) -> None:
        if self.on_its_way:
            place = data.draw(st.integers(0, len(self.on_its_way) - 1))
            self.index.apply(self.on_its_way[place])
            if not again:
                del self.on_its_way[place]
            self.faults += 1

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if self.on_its_way:
            del self.on_its_way[data.draw(st.integers(0, len(self.on_its_way) - 1))]
            self.faults += 1

    @rule(wait=st.floats(0.0, RESYNC_S))
    def ask(self, wait: float) -> None:
        self.now += wait
        self.on_its_way += map(self.answer, self.index.dump_requests(self.now))

    def answer(self, request: DumpRequest) -> ReplicaMessage:
        return self.replica.begin_anew() if request.rebuild else self.replica.dump()

    @invariant()
    def sound(self) -> None:
        self.index.check()

    def teardown(self) -> None:
        """The channel heals; the next heartbeat shows what is missing."""
        gaps = self.faults > 0
        self.deliver_in_order(len(self.on_its_way))
        self.index.apply(self.replica.lose({}))
        for _ in range(3):
            self.now += RESYNC_S / 3
            for request in self.index.dump_requests(self.now):
                self.index.apply(self.answer(request))
        assert self.index.replicas.believed(R)
        records = self.index._records
        believed = {name: record.tokens_left for name, record in records.items()}
        for name, left in believed.items():
            assert self.replica.held.get(name) == left, "a ghost, or less than is there"
        if not gaps:
            kept = {name: left for name, left in self.replica.held.items() if left >= HEAD}
            assert believed == kept, "in order, nothing is forgotten without a reason"
        self.index.check()


TestChannel = ChannelMachine.TestCase
TestChannel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
