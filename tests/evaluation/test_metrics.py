"""Scores as SQuAD counts them, and intervals that cover."""

import random

import pytest

from cp_ray.evaluation.metrics import estimate, exact, f1


@pytest.mark.parametrize(
    ("answer", "right", "exact_score", "f1_score"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 1.0, 1.0),
        ("in the Eiffel Tower", ["Eiffel Tower"], 0.0, 0.8),
        ("London", ["Paris", "london."], 1.0, 1.0),
        ("", ["x"], 0.0, 0.0),
        ("", [""], 1.0, 1.0),
        ("a b c d", ["a b x y"], 0.0, 2 * 1 / 6),
        ("anything", [], 0.0, 0.0),
    ],
)
def test_answers_are_scored_by_their_words(
    answer: str, right: list[str], exact_score: float, f1_score: float
) -> None:
    assert exact(answer, right) == exact_score
    assert f1(answer, right) == pytest.approx(f1_score)


def test_intervals_cover_the_mean_about_nineteen_times_of_twenty() -> None:
    covered = 0
    for seed in range(60):
        chosen = random.Random(seed)
        values = [float(chosen.random() < 0.7) for _ in range(80)]
        interval = estimate(values, seed)
        assert interval.low <= interval.mean <= interval.high
        covered += interval.low <= 0.7 <= interval.high
    assert covered >= 51


def test_no_questions_and_equal_values_have_intervals_of_no_width() -> None:
    assert estimate([]).high == 0.0
    assert estimate([0.5] * 9).low == estimate([0.5] * 9).high == 0.5
