"""The tokenizer's memory is bounded whatever the length of pieces: questions are short and many."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from cp_ray.router.tokenizer import PromptTokenizer


class Letters(PromptTokenizer):
    """A token a letter; counts what it had to encode."""

    encoded = 0

    def render(self, messages: Any, tools: Any, *, add_generation_prompt: bool) -> str:
        return ""

    def _encode(self, text: str, *, template: bool) -> Sequence[int]:
        self.encoded += 1
        return [ord(letter) for letter in text]


@pytest.mark.parametrize("letters", [1, 50, 5000])
def test_many_pieces_take_no_more_room_than_stated(letters: int) -> None:
    tested = Letters(100_000)
    tracemalloc.start()
    try:
        for number in range(2_000_000 // (letters + 100)):
            tested.encode(f"{number:<{letters}}"[:letters] if letters > 9 else f"{number}")
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 1.5 * 4 * 100_000
    assert 90_000 < tested.cached_tokens <= 100_000


def test_a_piece_seen_lately_is_not_encoded_again() -> None:
    tested = Letters()
    assert list(tested.encode("ab")) == list(tested.encode("ab")) == [97, 98]
    assert tested.encoded == 1
