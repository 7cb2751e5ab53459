"""Token ids as bytes, four each: what a prompt is between processes, and a page's key.

A tuple of 15,000 ids takes half a megabyte and half a millisecond to make, and as long to read
from a message; as many bytes are just copied. The byte order is the host's: a cluster has one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

TOKEN_BYTES: Final = 4


def packed(ids: Iterable[int]) -> bytes:
    """Raises OverflowError for an id below 0 or of more than 32 bits."""
    return array("I", ids).tobytes()


def unpacked(prompt: bytes) -> memoryview:
    """The ids, without a copy: a sequence of integers. Raises TypeError for a part of a token."""
    return memoryview(prompt).cast("I")
