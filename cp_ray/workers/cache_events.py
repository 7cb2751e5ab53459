"""What an engine says of its cache, as values: runs stored, copies removed, all cleared."""

from __future__ import annotations

import msgspec

EngineHash = int | bytes
"""The engine's name of a block's content; opaque."""


class Stored(msgspec.Struct, frozen=True):
    """A run of blocks entered the cache, each the child of the one before.

    extra: per block, whatever besides its tokens the engine keys it by; () = nothing.
    group: the engine's group of layers; names are unique within one.
    """

    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    tokens: tuple[int, ...]
    extra: tuple[tuple[str, ...], ...]
    block_size: int
    group: int = 0


class Removed(msgspec.Struct, frozen=True):
    """One copy of each of these blocks left the cache."""

    hashes: tuple[EngineHash, ...]
    group: int = 0


class Cleared(msgspec.Struct, frozen=True):
    """Every block left the cache."""


CacheEvent = Stored | Removed | Cleared
