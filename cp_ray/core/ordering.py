"""Algorithm 2: context ordering (paper 5.1)."""

from __future__ import annotations

from cp_ray.core.types import Context


def order(context: Context, prefix: Context) -> Context:
    """The matched prefix, then the other blocks in the order the client ranked them."""
    taken = set(prefix)
    return prefix + tuple(block for block in context if block not in taken)
