"""First tokens of one replica, told by several routers: late, out of order, or not at all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cp_ray.core.load import LEASE_S, LoadLedger, Work
from cp_ray.core.types import ReplicaId, RequestId

REPLICA = ReplicaId("r")
ROUTERS = 3
Told = tuple[float, RequestId]


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Told], list[Told], float]:
    """(planned at, request), (heard at, request), busy seconds: prompts in turn, no pause.

    Each router tells in order, and late by as much as it likes.
    """
    gaps = draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
    took = draw(st.lists(st.floats(1.0, 3.0), min_size=len(gaps), max_size=len(gaps)))
    planned: list[Told] = []
    heard: list[Told] = []
    last_told = [0.0] * ROUTERS
    at = done = 0.0
    for number, (gap, seconds) in enumerate(zip(gaps, took, strict=True)):
        at += gap if number else 0.0
        done += seconds
        router = draw(st.integers(0, ROUTERS - 1))
        name = RequestId(f"q{number}")
        planned.append((at, name))
        last_told[router] = max(last_told[router], done + draw(st.floats(0.0, 4.0)))
        heard.append((last_told[router], name))
    return planned, sorted(heard), max(last_told)


def play(planned: list[Told], heard: list[Told]) -> tuple[LoadLedger, dict[RequestId, float]]:
    """The ledger in the end, and the seconds that each prompt is said to have taken."""
    ledger, took = LoadLedger(), dict[RequestId, float]()
    events = [(at, 0, name) for at, name in planned] + [(at, 1, name) for at, name in heard]
    for now, told, name in sorted(events):
        if told:
            done = ledger.prefill_done(name, now)
            assert done is not None and done.seconds >= 0.0
            took[name] = done.seconds
            assert ledger.prefill_done(name, now) is None, "told twice"
        else:
            ledger.reserve(name, REPLICA, Work(0, 10, 1.0), now)
        ledger.check()
        waiting = len(ledger.queues[REPLICA].waiting)
        assert ledger.wait_s(REPLICA, now) >= max(0, waiting - 1) - 1e-6
    return ledger, took


@settings(deadline=None)
@given(runs())
def test_every_busy_second_is_some_prompts_in_whatever_order_routers_tell(
    run: tuple[list[Told], list[Told], float],
) -> None:
    planned, heard, busy_s = run
    ledger, took = play(planned, heard)
    if all(at < heard[0][0] for at, _ in planned):  # else the line may look empty in between
        assert abs(sum(took.values()) - busy_s) < 1e-6
    assert sum(took.values()) <= busy_s + 1e-6
    assert ledger.prefill_tokens(REPLICA) == 0


@settings(deadline=None)
@given(runs(), st.integers(0, 11))
def test_a_first_token_that_is_never_told_makes_no_other_prompt_look_slow(
    run: tuple[list[Told], list[Told], float], lost: int
) -> None:
    planned, heard, busy_s = run
    name = planned[lost % len(planned)][1]
    ledger, took = play(planned, [told for told in heard if told[1] != name])
    assert sum(took.values()) <= busy_s + 1e-6
    now = busy_s
    for number in range(3):  # the replica has long been idle, each time
        now += 60.0
        ledger.reserve(RequestId(f"later{number}"), REPLICA, Work(0, 10, 1.0), now)
        done = ledger.prefill_done(RequestId(f"later{number}"), now + 2.0)
        assert done is not None and abs(done.seconds - 2.0) < 1e-6
        ledger.check()
    ledger.reserve(RequestId("last"), REPLICA, Work(0, 10, 1.0), now + LEASE_S - 1.0)
    ledger.sweep(now + LEASE_S)
    done = ledger.prefill_done(RequestId("last"), now + LEASE_S)
    assert done is not None and abs(done.seconds - 1.0) < 1e-6
