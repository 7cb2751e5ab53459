"""Algorithm 3: de-duplication of context blocks against a conversation (paper section 6)."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from cp_ray.core.types import BlockId, Context


class Deduplicated(msgspec.Struct, frozen=True):
    """context: as given. repeated: those of it that the conversation holds, in order.

    A repeated block is sent as a location annotation exactly where it stood; nothing moves.
    """

    context: Context
    repeated: Context

    @property
    def new(self) -> Context:
        """Blocks that must be prefilled, in order."""
        repeated = set(self.repeated)
        return tuple(block for block in self.context if block not in repeated)


def deduplicate(context: Context, seen: Collection[BlockId]) -> Deduplicated:
    """Mark the blocks of `context` that are in `seen`; O(|context|).

    `seen` must come from the record of what the conversation's prompt really contains, so that
    every reference resolves inside the prompt sent (docs/decisions/0002).
    """
    return Deduplicated(context, tuple(block for block in context if block in seen))
