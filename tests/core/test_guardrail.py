"""The sequential test of reordering: rarely wrong, soon right, and its martingale is one."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.guardrail import by_pairs, by_share
from cp_ray.core.guardrail import Guardrail, Rule, Wealth, is_canary
from cp_ray.errors import ConfigError, InvariantError


def test_a_planted_loss_of_3_percent_is_stopped_within_5000_pairs() -> None:
    ends = [by_pairs(random.Random(seed), Rule(0.2), 0.03, 5_000) for seed in range(20)]
    assert None not in ends


def test_a_planted_loss_of_3_percent_is_stopped_within_40000_requests() -> None:
    """In 99 of 100 runs, docs/quality.md says."""
    ends = [by_share(random.Random(seed), Rule(0.5), 0.03, 40_000) for seed in range(4)]
    assert None not in ends


@pytest.mark.parametrize("bound", [0.0, 0.01])
def test_a_loss_within_the_bound_is_seldom_stopped(bound: float) -> None:
    rule = Rule(0.2, bound=bound)
    ends = [by_pairs(random.Random(seed), rule, bound, 600) for seed in range(150)]
    ends += [by_share(random.Random(seed), rule, bound, 600) for seed in range(150)]
    # At most 1% in expectation: seven or more of 300 would happen by chance once in 30 times.
    assert sum(end is not None for end in ends) <= 6


@given(
    share=st.sampled_from([0.25, 0.5]),
    bound=st.sampled_from([0.0, 0.25]),
    scores=st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_expected_wealth_never_grows_under_the_null(
    share: float, bound: float, scores: list[float]
) -> None:
    """Exactly: the mean over both arms of the next wealth, whatever came before."""
    canary_score, reordered_score = 0.75, 0.75 - bound

    def wealth(canary: bool | None) -> float:
        guard = Guardrail(Rule(share, bound=bound))
        for place, score in enumerate(scores):
            guard.observe(score, canary=place % 2 == 0)
        if canary is not None:
            guard.observe(canary_score if canary else reordered_score, canary=canary)
        return guard._chance.now

    mean = share * wealth(True) + (1 - share) * wealth(False)
    assert mean <= wealth(None) * (1 + 1e-9)


def test_once_stopped_it_stays_so() -> None:
    guard = Guardrail(Rule(0.5))
    while not guard.stopped:
        guard.observe_pair(1.0, 0.0)
    for _ in range(1000):
        guard.observe_pair(0.0, 1.0)
    assert guard.stopped
    assert "reordering=OFF" in guard.audit("t/")


def test_the_audit_line_says_what_was_seen() -> None:
    guard = Guardrail(Rule(0.5, bound=0.02))
    guard.observe(1.0, canary=True)
    guard.observe(0.5, canary=False)
    line = guard.audit("acme/planner")
    assert "route=acme/planner reordering=on without=1.0000/1 reordered=0.5000/1" in line
    assert "bound=0.02" in line and "alpha=0.01" in line


def test_the_canary_share_is_drawn_by_id() -> None:
    chosen = [is_canary(str(n), 0.2) for n in range(10_000)]
    assert 1_850 < sum(chosen) < 2_150
    assert chosen[:50] == [is_canary(str(n), 0.2) for n in range(50)]


@pytest.mark.parametrize("rule", [Rule(0.0), Rule(1.0), Rule(0.5, bound=1.0), Rule(0.5, alpha=0)])
def test_rules_that_cannot_be_tested_are_refused(rule: Rule) -> None:
    with pytest.raises(ConfigError, match="guardrail"):
        Guardrail(rule)


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan")])
def test_scores_outside_their_range_are_refused(score: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Guardrail(Rule(0.5)).observe(score, canary=True)


def test_bets_that_could_lose_more_than_all_are_an_error() -> None:
    wealth = Wealth(-1.0, 0.01)
    with pytest.raises(InvariantError):
        wealth.add(-1.5)
    with pytest.raises(ConfigError):
        Wealth(0.0, 0.01)
