"""What the index remembers of one request: where its prompt is, and how much of it."""

from __future__ import annotations

from enum import Enum
from itertools import accumulate

import msgspec

from cp_ray.core.types import Context, HeadId, PlanRequest, ReplicaId


class State(Enum):
    """PLANNED -> RESIDENT -> gone (no record)."""

    PLANNED = "planned"
    RESIDENT = "resident"


class Record(msgspec.Struct):
    """One request on one replica.

    ends: prompt tokens up to the end of each block, head included; same length as the context
    as planned. tokens_left: leading prompt tokens the replica still has.
    """

    head: HeadId
    head_tokens: int
    ends: tuple[int, ...]
    replica: ReplicaId
    state: State
    tokens_left: int
    predicted: int

    def blocks_left(self) -> int:
        """Leading blocks that lie wholly in `tokens_left`; -1 when the head does not."""
        if self.tokens_left < self.head_tokens:
            return -1
        return sum(1 for end in self.ends if end <= self.tokens_left)


def record_of(request: PlanRequest, context: Context, replica: ReplicaId, predicted: int) -> Record:
    """The record of a request just planned: all of its prompt will be on the replica."""
    size = dict(zip(request.context, request.block_tokens, strict=True))
    ends = tuple(accumulate((size[block] for block in context), initial=request.head_tokens))[1:]
    total = (ends[-1] if ends else request.head_tokens) + request.tail_tokens
    return Record(
        head=request.head,
        head_tokens=request.head_tokens,
        ends=ends,
        replica=replica,
        state=State.PLANNED,
        tokens_left=total,
        predicted=predicted,
    )
