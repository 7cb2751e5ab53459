"""A prompt of the simulator as rivals want it: text, or token ids. Equal pieces, equal content."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence

import numpy as np

from cp_ray.core.pages import Piece

CHARACTERS = 4
"""Of a token, as English has it."""
VOCABULARY = 1 << 15


def text_of(pieces: Sequence[Piece]) -> str:
    """`CHARACTERS` to a token: hexadecimal digits, which no two pieces share but by chance."""
    return "".join(_text(key, tokens * CHARACTERS) for key, tokens in pieces)


def token_ids(pieces: Sequence[Piece]) -> np.ndarray:
    """As many as the pieces say, in one array of 32 bits."""
    parts = [_digest(key, tokens * 4) for key, tokens in pieces]
    return np.frombuffer(b"".join(parts), dtype=np.uint32) % VOCABULARY


def token_list(pieces: Sequence[Piece]) -> list[int]:
    """The same as a list."""
    ids: list[int] = token_ids(pieces).tolist()
    return ids


def _text(key: Hashable, length: int) -> str:
    return _digest(key, -(-length // 2)).hex()[:length]


def _digest(key: Hashable, size: int) -> bytes:
    # `hash` differs from process to process.
    return hashlib.shake_128(repr(key).encode()).digest(size)
