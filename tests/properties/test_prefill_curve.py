import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cp_ray.core.prefill_curve import PrefillCurve, Sample, fit

tokens = st.integers(0, 1 << 17)
coefficients = st.tuples(
    st.floats(1e-4, 1), st.floats(1e-7, 1e-2), st.floats(0, 1e-6), st.floats(0, 1e-6)
)
samples = st.lists(
    st.builds(Sample, cached=tokens, new=tokens, seconds=st.floats(1e-4, 1e4)),
    min_size=1,
    max_size=30,
)


@given(coefficients, tokens, tokens, tokens)
def test_a_curve_never_falls_and_is_never_negative(values, cached, new, more):
    curve = PrefillCurve(*values)
    here = curve.seconds(cached, new)
    assert here >= 0
    assert curve.seconds(cached + more, new) >= here
    assert curve.seconds(cached, new + more) >= here


@settings(deadline=None)
@given(samples)
def test_a_fit_to_anything_is_a_curve_whose_error_bounds_nine_tenths(measured):
    fitted = fit(measured)
    assert min(msgspec.structs.astuple(fitted.curve)) >= 0
    off = [
        abs(fitted.curve.seconds(one.cached, one.new) - one.seconds) / one.seconds
        for one in measured
    ]
    assert sum(one > fitted.p90_relative_error for one in off) <= len(measured) / 10
    assert any(one == fitted.p90_relative_error for one in off)


@settings(deadline=None)
@given(coefficients)
def test_a_fit_finds_the_curve_its_samples_were_made_with(values):
    true = PrefillCurve(*values)
    measured = [
        Sample(cached, new, true.seconds(cached, new))
        for new in (64, 512, 2048, 8192, 32768)
        for cached in (0, 4096, 65536)
    ]
    assert fit(measured).p90_relative_error < 1e-6


@settings(deadline=None)
@given(samples, st.floats(0.1, 10))
def test_a_machine_that_is_slower_throughout_has_the_same_curve_slower(measured, factor):
    slower = [msgspec.structs.replace(one, seconds=one.seconds * factor) for one in measured]
    before, after = fit(measured), fit(slower)
    for one in measured:
        expected = before.curve.seconds(one.cached, one.new) * factor
        found = after.curve.seconds(one.cached, one.new)
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-3 * one.seconds)


def test_a_fit_refuses_what_is_no_measurement():
    with pytest.raises(ValueError, match="at least one"):
        fit([])
    with pytest.raises(ValueError, match="above 0"):
        fit([Sample(0, 10, 0.0)])


def test_a_negative_coefficient_is_no_curve():
    with pytest.raises(ValueError, match="per_pair_s"):
        PrefillCurve(0, 1, 1, -1e-9)
    with pytest.raises(ValueError, match="base_s"):
        PrefillCurve(float("nan"), 1, 1, 1)


def test_half_a_token_count_is_no_token_count():
    with pytest.raises(ValueError, match="below 0"):
        PrefillCurve(0, 1, 1, 1).seconds(-1, 5)
