"""Policy `lmcache`: the engine's own prefix cache, and a larger tier of 256-token chunks under it.

LMCache stores each prompt's whole chunks in host memory and gives back the longest exact run of
them. Both tiers together are the stated cache, so that policies compare at equal memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cp_ray.core.pages import Piece
from cp_ray.core.prefix_cache import PrefixCache, Sharing
from cp_ray.core.types import Eviction, RequestId

CHUNK_TOKENS = 256
FIRST_TIER = 4
"""The engine's tier is one part in so many of the whole."""


class Cache(Protocol):
    """What the replay asks of a cache; see PrefixCache for each."""

    def fits(self, tokens: int) -> bool:
        """Whether a prompt of so many tokens fits into the empty cache."""

    def lookup(self, pieces: Sequence[Piece]) -> int:
        """Tokens of the prompt that `admit` would find now."""

    def admit(self, request_id: RequestId, pieces: Sequence[Piece]) -> int | None:
        """Begin a request: its cached tokens, or None while others leave no room."""

    def prefilled(self, request_id: RequestId) -> None:
        """Its prompt is cached."""

    def release(self, request_id: RequestId) -> None:
        """It ended."""

    def take_evictions(self) -> list[Eviction]:
        """What requests lost since the last call."""


class TieredCache:
    """Inclusive tiers, each LRU: a request finds the longer of the two prefixes."""

    def __init__(self, capacity_tokens: int | None, sharing: Sharing, record_limit: int) -> None:
        first = None if capacity_tokens is None else capacity_tokens // FIRST_TIER
        second = None if capacity_tokens is None or first is None else capacity_tokens - first
        self._first = PrefixCache(first, 1, sharing=sharing, record_limit=record_limit)
        self._second = PrefixCache(second, CHUNK_TOKENS, record_limit=1)
        self._pieces: dict[RequestId, Sequence[Piece]] = {}

    def fits(self, tokens: int) -> bool:
        """Whether the engine's own tier can run the prompt."""
        return self._first.fits(tokens)

    def lookup(self, pieces: Sequence[Piece]) -> int:
        """The longer prefix of the two tiers."""
        return max(self._first.lookup(pieces), self._second.lookup(pieces))

    def admit(self, request_id: RequestId, pieces: Sequence[Piece]) -> int | None:
        """What the first tier lacks comes from the second, if that has it."""
        below = self._second.lookup(pieces)
        found = self._first.admit(request_id, pieces)
        if found is None:
            return None
        self._pieces[request_id] = pieces
        return max(found, below)

    def prefilled(self, request_id: RequestId) -> None:
        """Store the prompt's chunks in the second tier as well."""
        self._first.prefilled(request_id)
        pieces = self._pieces.pop(request_id, None)
        if pieces is not None and self._second.admit(request_id, pieces) is not None:
            self._second.prefilled(request_id)
            self._second.release(request_id)

    def release(self, request_id: RequestId) -> None:
        """It ended."""
        self._first.release(request_id)

    def take_evictions(self) -> list[Eviction]:
        """Of the first tier; nobody who plans looks at these."""
        return self._first.take_evictions()
