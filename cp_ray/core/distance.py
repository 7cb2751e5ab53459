"""Eq. 1: the distance of two contexts (paper 4.1)."""

from __future__ import annotations

from cp_ray.core.types import Context

DEFAULT_ALPHA = 0.001
"""At 0.01 positions outweigh overlap from 15 blocks on (docs/decisions/0003)."""


def distance(left: Context, right: Context, alpha: float = DEFAULT_ALPHA) -> float:
    """1 - |shared| / max size + alpha * mean position gap of shared blocks.

    Contexts without a shared block are at 1.0. Both hold distinct ids.
    """
    position = {block: index for index, block in enumerate(right)}
    gaps = [abs(index - position[block]) for index, block in enumerate(left) if block in position]
    if not gaps:
        return 1.0
    overlap = len(gaps) / max(len(left), len(right))
    return 1.0 - overlap + alpha * sum(gaps) / len(gaps)
