"""Which known prefix a request follows on the replica chosen for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cp_ray.core.search import Candidate
from cp_ray.core.types import Context


class Path(msgspec.Struct, frozen=True):
    """A prefix to follow, and how many of its tokens the replica holds."""

    prefix: Context
    held_tokens: int


def best_path(candidates: Sequence[Candidate], bit: int, trust: float) -> Path:
    """The prefix to follow on the replica of number `bit`: held tokens first, then familiar ones.

    trust: held tokens that one unheld token is worth per request that passed there. Beyond the
    held part an order known elsewhere costs nothing to follow and makes the next request of its
    kind a hit here as well, so on a tie the longer prefix is taken.
    """
    best_value, best_tokens, best_held = 0.0, 0, 0
    best: Candidate | None = None
    for candidate in candidates:
        tokens = candidate.tokens
        value: float
        if candidate.holders >> bit & 1:
            held_tokens = tokens
            value = float(tokens)
        else:
            held = candidate.above
            while held is not None and not held.holders >> bit & 1:
                held = held.above
            held_tokens, familiar = (held.tokens, held.familiar) if held is not None else (0, 0)
            value = held_tokens + trust * (candidate.familiar - familiar)
        if value > best_value or (value == best_value and tokens > best_tokens):
            best, best_value, best_tokens, best_held = candidate, value, tokens, held_tokens
    return Path(best.prefix, best_held) if best is not None else Path((), 0)
