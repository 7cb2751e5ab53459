"""The load ledger against a naive dict."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cp_ray.core.load import LEASE_S, LoadLedger, Work
from cp_ray.core.types import ReplicaId, RequestId

names = st.sampled_from([RequestId(f"q{number}") for number in range(5)])
replicas = st.sampled_from([ReplicaId("r0"), ReplicaId("r1")])


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = LoadLedger()
        self.model: dict[RequestId, tuple[ReplicaId, int, float]] = {}
        self.now = 0.0

    @rule(name=names, replica=replicas, tokens=st.integers(0, 50))
    def reserve(self, name: RequestId, replica: ReplicaId, tokens: int) -> None:
        self.ledger.reserve(name, replica, Work(0, tokens, tokens / 1000), self.now)
        self.model[name] = (replica, tokens, self.now)

    @rule(name=names, replica=replicas, tokens=st.integers(0, 50))
    def move(self, name: RequestId, replica: ReplicaId, tokens: int) -> None:
        self.ledger.move(name, replica, Work(0, tokens, tokens / 1000), self.now)
        if name in self.model and self.model[name][0] != replica:
            self.model[name] = (replica, tokens, self.model[name][2])

    @rule(name=names)
    def prefill_done(self, name: RequestId) -> None:
        self.ledger.prefill_done(name, self.now)
        if name in self.model:
            self.model[name] = (self.model[name][0], 0, self.now)

    @rule(name=names, times=st.integers(1, 3))
    def free(self, name: RequestId, times: int) -> None:
        for _ in range(times):
            self.ledger.free(name)
        self.model.pop(name, None)

    @rule(replica=replicas)
    def drop(self, replica: ReplicaId) -> None:
        self.ledger.drop_replica(replica)
        self.model = {name: held for name, held in self.model.items() if held[0] != replica}

    @rule(passed=st.sampled_from([1.0, LEASE_S / 2, LEASE_S]))
    def sweep(self, passed: float) -> None:
        self.now += passed
        self.ledger.sweep(self.now)
        self.model = {n: held for n, held in self.model.items() if self.now - held[2] < LEASE_S}

    @invariant()
    def sums_agree(self) -> None:
        self.ledger.check()
        for replica in (ReplicaId("r0"), ReplicaId("r1")):
            mine = [held for held in self.model.values() if held[0] == replica]
            assert self.ledger.prefill_tokens(replica) == sum(held[1] for held in mine)
            assert self.ledger.running(replica) == len(mine)
            seconds = sum(held[1] for held in mine) / 1000
            assert self.ledger.wait_s(replica, self.now) <= seconds + 1e-9
        assert len(self.ledger) == len(self.model)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
