"""What the index remembers of one request: where its prompt is, and how much of it."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from enum import Enum
from typing import Final

import msgspec

from cp_ray.core.types import BlockId, Context, HeadId, PlanRequest, ReplicaId

CODE: Final = "I"
"""Of `Record.ends` as an array: a prompt has less than 2 ** 32 tokens."""
WIDTH: Final = array(CODE).itemsize


class State(Enum):
    """PLANNED -> RESIDENT -> gone (no record)."""

    PLANNED = "planned"
    RESIDENT = "resident"


class Record(msgspec.Struct, gc=False):
    """One request on one replica.

    ends: tokens from the head's end up to that of each block of the context as planned, packed as
    an array's bytes: a tuple takes ten times the room, an array with its slack twice. tokens_left:
    leading prompt tokens the replica still has.
    """

    head: HeadId
    head_tokens: int
    ends: bytes
    replica: ReplicaId
    state: State
    tokens_left: int
    predicted: int

    @property
    def blocks(self) -> int:
        """Blocks of the context as planned."""
        return len(self.ends) // WIDTH

    def tokens_of(self, count: int) -> int:
        """Tokens of the first `count` blocks together; there must be as many."""
        if not count:
            return 0
        return int.from_bytes(self.ends[(count - 1) * WIDTH : count * WIDTH], sys.byteorder)

    def blocks_left(self) -> int:
        """Leading blocks that lie wholly in `tokens_left`; -1 when the head does not."""
        behind_head = self.tokens_left - self.head_tokens
        return bisect_right(array(CODE, self.ends), behind_head) if behind_head >= 0 else -1

    def block_tokens(self, count: int) -> tuple[int, ...]:
        """Tokens of each of the first `count` blocks."""
        sizes, start = [], 0
        for end in array(CODE, self.ends)[:count]:
            sizes.append(end - start)
            start = end
        return tuple(sizes)


def record_of(
    request: PlanRequest,
    context: Context,
    tokens: dict[BlockId, int],
    replica: ReplicaId,
    predicted: int,
) -> Record:
    """The record of a request just planned: all of its prompt will be on the replica.

    tokens: of each block.
    """
    ends, blocks = [], 0
    for block in context:
        blocks += tokens[block]
        ends.append(blocks)
    return Record(
        head=request.head,
        head_tokens=request.head_tokens,
        ends=array(CODE, ends).tobytes(),
        replica=replica,
        state=State.PLANNED,
        tokens_left=request.head_tokens + blocks + request.tail_tokens,
        predicted=predicted,
    )
