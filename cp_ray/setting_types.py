"""How settings are read: words of a command line into values, keys into their digests."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BeforeValidator, SecretStr


def _from_json(value: Any) -> Any:
    """Command-line values are strings: read an object where one is meant."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return json.loads(value)
    return value


def reveal(value: Any) -> str:
    """The JSON form of a secret, for our own processes; raises TypeError for anything else."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    raise TypeError(f"a setting of type {type(value).__name__} has no JSON form")


def _words(value: Any) -> Any:
    """Command-line values are strings: names are parted by commas."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return value


Names = Annotated[tuple[str, ...], BeforeValidator(_words)]
JsonDict = Annotated[dict[str, Any], BeforeValidator(_from_json)]


def _hashed(value: Any) -> Any:
    """Keep no key: only its digest goes into the processes of the application, and to Ray."""
    value = _from_json(value)
    if not isinstance(value, dict):
        return value
    return {name: _hashed_words(text) for name, text in value.items()}


def _hashed_words(text: Any) -> Any:
    if isinstance(text, SecretStr):
        text = text.get_secret_value()
    if not isinstance(text, str):
        return text
    words = text.encode("utf-8", "replace").split()
    return b" ".join(
        word if word.startswith(DIGEST) else DIGEST + sha256(word).hexdigest().encode()
        for word in words
    ).decode("utf-8", "replace")


DIGEST = b"sha256:"
Key = Annotated[SecretStr, BeforeValidator(_hashed_words)]
Keys = Annotated[dict[str, SecretStr], BeforeValidator(_hashed)]
