"""Embeddings without a model: hashed words. For tests, and where no embedder can be had.

It knows words, not meanings: "car" is as far from "automobile" as from "pear".
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]
"""Texts to one row each; rows need not be normalized."""

_WORD = re.compile(r"\w+")


def hashed_words(texts: Sequence[str], dimensions: int = 256) -> Vectors:
    """One row a text, of length one: each word adds or takes one, where its digest says."""
    rows = np.zeros((len(texts), dimensions), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in _WORD.findall(text.lower()):
            digest = zlib.crc32(word.encode())
            row[digest % dimensions] += 1 if digest >> 31 else -1
    return normalized(rows)


def normalized(rows: Vectors) -> Vectors:
    """Rows of length one; rows of zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths == 0, 1, lengths)).astype(np.float32)
