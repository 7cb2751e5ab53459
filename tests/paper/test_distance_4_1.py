"""Paper 4.1: the four contexts A-D, and what alpha must not do."""

from cp_ray.core.distance import distance
from tests.paper.worked_examples import A, B, C, D


def test_b_and_d_are_closest_because_their_overlap_is_aligned() -> None:
    printed = {
        "A-B": distance(A, B),
        "B-C": distance(B, C),
        "B-D": distance(B, D),
    }
    assert {pair: f"{value:.3f}" for pair, value in printed.items()} == {
        "A-B": "0.502",
        "B-C": "0.502",
        "B-D": "0.500",
    }


def test_without_the_position_term_all_three_pairs_tie_at_one_half() -> None:
    assert distance(A, B, 0.0) == distance(B, C, 0.0) == distance(B, D, 0.0) == 0.5


def test_disjoint_and_empty_contexts_are_at_one() -> None:
    assert distance(A, D) == 1.0
    assert distance(A, ()) == 1.0
    assert distance((), ()) == 1.0


def test_distance_is_symmetric_and_zero_to_itself() -> None:
    assert distance(A, B) == distance(B, A)
    assert distance(A, A) == 0.0
