"""The wire format: one version byte, then msgpack. Every message between processes is this."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, overload

import msgspec

from cp_ray.errors import WireError

VERSION = 1
"""Raised whenever a message changes in a way an older reader would misread."""

_PREFIX = bytes([VERSION])
_ENCODER = msgspec.msgpack.Encoder()
T = TypeVar("T")


@cache
def _decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(type_)


def encode(obj: Any) -> bytes:
    """Encode a struct, or a list of them."""
    return _PREFIX + _ENCODER.encode(obj)


@overload
def decode(data: bytes, type_: type[T]) -> T: ...
@overload
def decode(data: bytes, type_: Any) -> Any: ...
def decode(data: bytes, type_: Any) -> Any:
    """Decode what `encode` made of a `type_` (a struct, a union or a list of them).

    Raises WireError on an unknown version, on bytes that are no msgpack, and on msgpack that is
    not a `type_`: the caller counts it and treats it as a gap.
    """
    if not data:
        raise WireError("empty message: the version byte is missing")
    if data[0] != VERSION:
        raise WireError(
            f"message of wire version {data[0]}, this process reads {VERSION}: "
            "run the same cp_ray on every host"
        )
    try:
        return _decoder(type_).decode(memoryview(data)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"message cannot be read: {error}") from error
