"""Plans on their way, against a list of all that was ever planned and heard."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cp_ray.core.arrivals import PATIENCE_S, Arrivals
from cp_ray.core.types import RequestId

NAMES = st.sampled_from([RequestId(name) for name in "abcdef"])


class ArrivalsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.arrivals = Arrivals()
        self.now = 0.0
        self.waited_for: list[tuple[RequestId, float]] = []

    def _forget(self, name: RequestId) -> None:
        self.waited_for = [(one, at) for one, at in self.waited_for if one != name]

    @rule(name=NAMES)
    def planned(self, name: RequestId) -> None:
        self.arrivals.planned(name, self.now)
        self._forget(name)
        self.waited_for.append((name, self.now))

    @rule(name=NAMES)
    def heard(self, name: RequestId) -> None:
        self.arrivals.heard(name)
        self._forget(name)

    @rule(wait=st.sampled_from([0.0, 1.0, PATIENCE_S - 1.0, PATIENCE_S]))
    def pass_time(self, wait: float) -> None:
        self.now += wait

    @rule()
    def lost(self) -> None:
        late = [name for name, at in self.waited_for if self.now - at >= PATIENCE_S]
        assert self.arrivals.lost(self.now) == late
        for name in late:
            self._forget(name)

    @invariant()
    def agrees(self) -> None:
        self.arrivals.check()
        assert len(self.arrivals) == len(self.waited_for)


TestArrivals = ArrivalsMachine.TestCase
