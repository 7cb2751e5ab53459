"""Numbers read where compiled code reads them fast are those of the structs they come from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cp_ray.core.estimated_ttft import SPREAD, PrefillTimes
from cp_ray.core.node import ContextNode
from cp_ray.core.own_times import Alone, OwnTimes
from cp_ray.core.prefill_curve import PrefillCurve
from cp_ray.core.search import Candidate, best_per_holder

coefficients = st.floats(0, 1, allow_subnormal=False)
tokens = st.integers(0, 1_000_000)


@given(st.tuples(*[coefficients] * 4), tokens, tokens)
def test_alone_is_the_curve_to_the_last_digit(
    of: tuple[float, float, float, float], cached: int, new: int
) -> None:
    curve = PrefillCurve(*of)
    assert Alone(curve).seconds(cached, new) == curve.seconds(cached, new)


def test_a_prompt_that_is_held_whole_computes_its_last_token() -> None:
    own = OwnTimes(Alone(PrefillCurve(0.5, 0.25, 0.0, 0.0)), [0.25, 0.0], [2.0, 1.0])
    assert own.seconds(0, 100, 100) == (0.5 + 0.25 + 0.25) * 2.0
    assert own.seconds(1, 98, 100) == 1.0


def test_the_p90_is_that_of_the_last_ratios_alone() -> None:
    times = PrefillTimes()
    ratios = [1.0 + (number * 37 % 1000) / 100 for number in range(3 * SPREAD)]
    for ratio in ratios:
        times.judge(1.0, ratio)
    times.check()
    last = sorted(ratios[-SPREAD:])
    assert times.p90_s(1.0) == last[SPREAD * 9 // 10]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, (1 << 70) - 1)), max_size=12),
    st.integers(0, (1 << 70) - 1),
)
def test_each_holder_gets_the_first_of_those_worth_most(
    values: list[tuple[int, int]], wanted: int
) -> None:
    root = ContextNode((), None, 0)
    candidates = [Candidate(root, 0, worth, holders) for worth, holders in values]
    found = best_per_holder(candidates, wanted)
    for bit in (1 << place for place in range(70)):
        held = [one for one in candidates if one.holders & bit] if wanted & bit else []
        first = max(held, key=lambda one: one.tokens, default=None)  # max takes the first
        assert found.get(bit) is first
