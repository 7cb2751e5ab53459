"""A model check: every permutation, loss and duplicate of six reports and a dump, exhaustively.

Two replicas, two epochs. The states of the index that any sequence of deliveries can reach are
enumerated; each is held against what delivery in order would have left.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import (
    BlockId,
    Dump,
    Eviction,
    EvictionReport,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    ReplicaMessage,
    RequestId,
    Settled,
)

A, B = ReplicaId("a"), ReplicaId("b")
WHOLE = 33
NAMES = {A: ("a1", "a2", "a3"), B: ("b1", "b2")}
Held = dict[RequestId, int]


def lost(replica: ReplicaId, epoch: int, seq: int, **left: int) -> EvictionReport:
    evicted = tuple(Eviction(RequestId(name), tokens) for name, tokens in left.items())
    return EvictionReport(replica, epoch, seq, evicted)


def held(**left: int) -> Held:
    return {RequestId(name): tokens for name, tokens in left.items()}


class Scenario(NamedTuple):
    """messages: six reports and a dump. begins: epoch in which each replica has its records.

    ends: epoch and number of each one's next message.
    """

    messages: tuple[ReplicaMessage, ...]
    begins: dict[ReplicaId, int]
    ends: dict[ReplicaId, tuple[int, int]]

    def in_order(self, replica: ReplicaId, epoch: int, seq: int) -> Held:
        """What is known when all before this number has come, one after the other."""
        if epoch > self.begins[replica]:
            return {}
        state = held(**dict.fromkeys(NAMES[replica], WHOLE))
        for message in self.messages:
            if (message.replica, message.epoch) != (replica, epoch) or message.seq >= seq:
                continue
            if isinstance(message, Dump):
                state = {n: min(left, state[n]) for n, left in message.held.items() if n in state}
            else:
                state |= {eviction.request_id: eviction.tokens_left for eviction in message.evicted}
        return {name: left for name, left in state.items() if left}


SCENARIOS = {
    "one of an epoch long gone": Scenario(
        (
            lost(A, 0, 7, a1=0),
            lost(A, 1, 1, a1=25),
            lost(A, 1, 2, a2=0),
            Dump(A, 1, 3, held(a1=25, a3=WHOLE)),
            lost(A, 1, 4, a3=15),
            lost(B, 0, 0, b1=15),
            lost(B, 1, 0),
        ),
        {A: 1, B: 0},
        {A: (1, 5), B: (1, 1)},
    ),
    "a new epoch behind a dump": Scenario(
        (
            lost(A, 0, 0, a1=25),
            lost(A, 0, 1, a2=0, a3=20),
            Dump(A, 0, 2, held(a1=25, a3=20)),
            lost(A, 0, 3, a1=15),
            lost(A, 1, 0),
            lost(B, 0, 0, b1=15),
            lost(B, 0, 1, b2=0),
        ),
        {A: 0, B: 0},
        {A: (1, 1), B: (0, 2)},
    ),
    "all of one replica": Scenario(
        (
            lost(A, 0, 0, a1=25),
            lost(A, 0, 1, a2=20),
            Dump(A, 0, 2, held(a1=25, a2=20, a3=WHOLE)),
            lost(A, 0, 3, a1=0),
            lost(A, 0, 4, a3=0),
            lost(A, 0, 5, a2=15),
            lost(B, 1, 0),
        ),
        {A: 0, B: 0},
        {A: (0, 6), B: (1, 1)},
    ),
}
on_each = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())


def fresh(scenario: Scenario) -> ContextIndex:
    index = ContextIndex()
    index.set_replicas([ReplicaInfo(A, 1, 1000), ReplicaInfo(B, 1, 1000)])
    for replica, epoch in scenario.begins.items():
        if epoch:
            index.apply(lost(replica, epoch, 0))
    names = [name for replica in (A, B) for name in NAMES[replica]]
    for name in names:
        block = (BlockId(name),)
        request = PlanRequest(RequestId(name), HeadId(name), 10, block, (20,), WHOLE - 30)
        index.plan([request], 0.0)
        index.hear(Settled(request.request_id, 0, ok=True), 0.0)
    for replica in (A, B):
        for name in NAMES[replica]:
            bit = index.replicas.bit(replica)
            index.memory.move(RequestId(name), replica, bit)
    index.check()
    return index


Position = tuple[int, int, int | None]
State = tuple[tuple[Position, tuple[tuple[str, int], ...]], ...]


def known(index: ContextIndex, replica: ReplicaId) -> Held:
    records = index.memory.records.items()
    return {name: record.tokens_left for name, record in records if record.replica == replica}


def state_of(index: ContextIndex) -> State:
    return tuple(
        (index.replicas.position(replica), tuple(sorted(known(index, replica).items())))
        for replica in (A, B)
    )


Way = tuple[int, ...]
"""Numbers of messages, as they were delivered."""


def after(scenario: Scenario, way: Way) -> ContextIndex:
    index = fresh(scenario)
    for number in way:
        index.apply(scenario.messages[number])
    index.check()
    return index


def reachable(scenario: Scenario) -> dict[tuple[int, State], Way]:
    """Every (set of messages that came at least once, state), by any sequence of deliveries.

    With one way that leads there: what comes next depends on the state alone.
    """
    found: dict[tuple[int, State], Way] = {(0, state_of(fresh(scenario))): ()}
    step: dict[tuple[State, int], State] = {}
    waiting = list(found)
    while waiting:
        came, state = waiting.pop()
        for number in range(len(scenario.messages)):
            way = (*found[came, state], number)
            if (state, number) not in step:
                step[state, number] = state_of(after(scenario, way))
            node = came | 1 << number, step[state, number]
            if node not in found:
                found[node] = way
                waiting.append(node)
    return found


@on_each
def test_whatever_comes_nothing_wrong_is_believed_and_the_next_heartbeat_heals(
    scenario: Scenario,
) -> None:
    found = reachable(scenario)
    ways = {state: way for (_, state), way in found.items()}
    assert len(found) > 1 << len(scenario.messages), "orders differ"
    everything = (1 << len(scenario.messages)) - 1
    complete = {state for came, state in found if came == everything}
    assert complete
    for state, way in ways.items():
        index = after(scenario, way)
        assert state_of(index) == state
        nothing_wrong_is_believed(scenario, index)
        if state in complete:
            as_in_order_or_forgotten(scenario, index)
        the_next_heartbeat_heals(scenario, index)


def nothing_wrong_is_believed(scenario: Scenario, index: ContextIndex) -> None:
    for replica in (A, B):
        epoch, seq, needs = index.replicas.position(replica)
        if needs is None:
            truth = scenario.in_order(replica, epoch, seq)
            for name, left in known(index, replica).items():
                assert left <= truth.get(name, 0), (state_of(index), name)


def as_in_order_or_forgotten(scenario: Scenario, index: ContextIndex) -> None:
    """Or the replica owes a dump, and then none of its records is believed."""
    for replica in (A, B):
        epoch, seq, needs = index.replicas.position(replica)
        assert (epoch, seq) == scenario.ends[replica]
        if needs is None:
            assert known(index, replica) in ({}, scenario.in_order(replica, epoch, seq))


def the_next_heartbeat_heals(scenario: Scenario, index: ContextIndex) -> None:
    truth = {replica: scenario.in_order(replica, *scenario.ends[replica]) for replica in (A, B)}
    for replica, (epoch, seq) in scenario.ends.items():
        index.apply(lost(replica, epoch, seq))
    for request in index.dump_requests(0.0):
        epoch, seq = scenario.ends[request.replica]
        assert not request.rebuild
        index.apply(Dump(request.replica, epoch, seq + 1, truth[request.replica]))
    for replica in (A, B):
        assert index.replicas.believed(replica)
        assert known(index, replica).items() <= truth[replica].items(), state_of(index)
    index.check()


@on_each
def test_in_order_delivery_forgets_nothing(scenario: Scenario) -> None:
    index = fresh(scenario)
    for message in scenario.messages:
        index.apply(message)
    for replica in (A, B):
        assert known(index, replica) == scenario.in_order(replica, *scenario.ends[replica])
        assert index.replicas.believed(replica)
