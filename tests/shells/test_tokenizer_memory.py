"""The tokenizer's memory is bounded whatever the length of pieces: questions are short and many."""

from __future__ import annotations

import re
import tracemalloc
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cp_ray.router.tokenizer import PromptTokenizer, WordTokenizer


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


@given(st.text(st.sampled_from("a b,.é\n\t0_9🙂界A<|im_start|>"), max_size=60))
@settings(max_examples=300, deadline=None)
def test_words_that_are_remembered_give_the_ids_of_the_text_as_a_whole(text: str) -> None:
    """A token never spans a space but at its beginning: cut there, nothing changes."""
    whole = [zlib.crc32(word.encode()) for word in re.findall(r" ?\w{1,8}|\s|[^\w\s]", text)]
    expected = [16 + number % ((1 << 31) - 16) for number in whole]
    tested = WordTokenizer(cached_tokens=1)
    assert list(tested.encode(text)) == list(tested.encode(text)) == expected


def test_the_words_that_are_remembered_are_bounded() -> None:
    tested = WordTokenizer()
    text = " ".join(f"w{number}" for number in range(20_000))
    tested.encode(text)
    assert 0 < len(tested._after_space) <= 4096
