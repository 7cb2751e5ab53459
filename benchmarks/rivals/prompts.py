"""A prompt of the simulator as rivals want it: text, or token ids. Equal pieces, equal content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from cp_ray.core.pages import Piece

Encode = Callable[[Sequence[Piece]], object]
"""A prompt as a router is sent it."""
CHARACTERS = 4
"""Of a token, as English has it."""
VOCABULARY = 1 << 15


def text_of(pieces: Sequence[Piece]) -> str:
    """`CHARACTERS` to a token: hexadecimal digits, which no two pieces share but by chance."""
    return "".join(_text(key, tokens * CHARACTERS) for key, tokens in pieces)


def distinct_text_of(pieces: Sequence[Piece]) -> str:
    """The same, but that hardly any two pieces begin with the same character.

    Trees of characters take one that two texts share by chance for a prefix in common.
    """
    texts = ((_text(key, tokens * CHARACTERS), _digest(key, 2)) for key, tokens in pieces)
    return "".join(chr(0x4E00 + int.from_bytes(two) % 20_000) + text[1:] for text, two in texts)


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
