"""Inputs for the fuzzer: bytes from seeds, and JSON values from a good one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

INTERESTING = (0, 1, 0x7F, 0x80, 0x90, 0x9F, 0xC0, 0xC1, 0xCA, 0xCF, 0xD3, 0xDC, 0xDD, 0xDF, 0xFF)
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, -(2**63), 2**64, 10**400, 1e308, -0.0, 1e-320,
    float("nan"), float("inf"), "", " ", "\0", "\ud800", "\u202e", "a" * 5000, "👩‍👩‍👧" * 20,
    "<|im_start|>", "{{7*7}}", "../../etc", [], {}, [[]], [None], {"": ""}, [[[[[[[[]]]]]]]],
    {"type": "text", "text": "x"}, [{"type": "text", "text": 7}], "1", "true", [0] * 300,
)  # fmt: skip
NAMES = (
    "model", "messages", "prompt", "documents", "conversation", "agent", "stream", "max_tokens",
    "temperature", "top_p", "stop", "seed", "n", "tools", "tool_choice", "stream_options",
    "response_format", "cache_salt", "requests", "role", "content", "text", "id", "title",
    "public", "user", "logit_bias", "tool_calls", "name", "presence_penalty",
    "max_completion_tokens", "top_k", "frequency_penalty", "ignore_eos", "lift_documents",
)  # fmt: skip


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One to eight changes of a seed: flips, cuts, copies, interesting bytes, splices."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 3, 5, 8))):
        kind = rng.randrange(7)
        at = rng.randrange(len(data) + 1)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data.insert(at, rng.choice(INTERESTING))
        elif kind == 2 and data:
            data[at % len(data)] = rng.choice(INTERESTING)
        elif kind == 3:
            del data[at : at + rng.randrange(1, 9)]
        elif kind == 4:
            data[at:at] = data[at : at + rng.randrange(1, 64)]
        elif kind == 5:
            other = rng.choice(seeds)
            cut = rng.randrange(len(other) + 1)
            data[at:] = other[cut:]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data[: 1 << 16])


def odd_json(rng: random.Random, good: Any) -> bytes:
    """A good value with some of its parts replaced, renamed, doubled or left out."""
    value = good
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = _changed(rng, value, depth=0)
    return json.dumps(value).encode()


def _changed(rng: random.Random, value: Any, depth: int) -> Any:
    if rng.random() < 0.15 + 0.1 * depth or not isinstance(value, dict | list) or not value:
        return rng.choice(ODD)
    if isinstance(value, dict):
        name = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.1:
            return {key: item for key, item in value.items() if key != name}
        if kind < 0.25:
            return {**value, rng.choice(NAMES): rng.choice(ODD)}
        return {**value, name: _changed(rng, value[name], depth + 1)}
    place = rng.randrange(len(value))
    if rng.random() < 0.2:
        return [*value, value[place]]
    return [*value[:place], _changed(rng, value[place], depth + 1), *value[place + 1 :]]
