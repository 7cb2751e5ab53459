"""Bounded memories: what is kept for sure, and the most that can be."""

from __future__ import annotations

from cp_ray.core.seen import Lately


def test_the_last_ones_are_kept_and_at_most_twice_as_many() -> None:
    lately: Lately[int] = Lately(10)
    for number in range(95):
        lately.put(f"n{number}", number)
        last = range(max(0, number - 9), number + 1)
        assert [lately.get(f"n{one}") for one in last] == list(last)
        kept = sum(lately.get(f"n{one}") is not None for one in range(number + 1))
        assert kept <= 20
    assert lately.get("n0") is None
    assert lately.fill() == (10, 10)


def test_what_is_put_again_takes_the_place_of_what_was_there() -> None:
    lately: Lately[int] = Lately(2)
    lately.put("a", 1)
    lately.put("b", 2)
    lately.put("a", 3)
    assert lately.get("a") == 3
    assert lately.get("b") == 2
    lately.put("a", 0)
    assert lately.get("a") == 0
