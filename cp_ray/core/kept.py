"""What is kept of a request across a restart of the index, and how it comes back.

Only requests that ended well are kept: of these it is certain in which order which tokens were
computed where. What their replica still has of them is not: after a restart each replica is
believed nothing until its own dump has confirmed, shortened or removed what came back.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cp_ray.core.index import ContextIndex
from cp_ray.core.record import State, record_of
from cp_ray.core.types import BlockId, Context, HeadId, PlanRequest, ReplicaId, RequestId

MOST_TOKENS = 1 << 32
"""A prompt has fewer: records count in 32 bits."""


class Kept(msgspec.Struct, frozen=True):
    """One request on one replica. context: the blocks it had left when it was written.

    block_tokens: of each. tokens_left: leading prompt tokens the replica had.
    """

    request: RequestId
    replica: ReplicaId
    head: HeadId
    head_tokens: int
    context: Context
    block_tokens: tuple[int, ...]
    tokens_left: int


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Kept whose names are places in the tables of its batch."""

    request: RequestId
    replica: int
    head: int
    head_tokens: int
    blocks: tuple[int, ...]
    tokens_left: int


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Many Kept as one message: each name once, and each block's length with its name."""

    replicas: list[ReplicaId]
    heads: list[HeadId]
    blocks: list[tuple[BlockId, int]]
    rows: list[_Row]


def kept(index: ContextIndex, request: RequestId) -> Kept | None:
    """What to keep of a request; None when it has not ended, or nothing is left of it."""
    record = index.memory.records.get(request)
    if record is None or record.state is not State.RESIDENT:
        return None
    context = index.memory.trees[record.head].node_of[request].context
    return Kept(
        request=request,
        replica=record.replica,
        head=record.head,
        head_tokens=record.head_tokens,
        context=context,
        block_tokens=record.block_tokens(len(context)),
        tokens_left=record.tokens_left,
    )


def recall(index: ContextIndex, batch: Batch) -> int:
    """Put records back, oldest first; returns how many.

    Their replicas are believed nothing from then on, until each has sent a dump. Left out: those
    of replicas that are not live, those known already, and rows that no request can have. Beyond
    the capacity the oldest goes.
    """
    count = 0
    memory, replicas = index.memory, index.replicas
    names = [block for block, _ in batch.blocks]
    lengths = [length for _, length in batch.blocks]
    tokens = dict(batch.blocks)
    alike = len(tokens) == len(names)  # a block of two lengths: two texts of one digest, or a lie
    for row in batch.rows:
        if row.request in memory.records or not _possible(batch, row, lengths):
            continue
        replica = batch.replicas[row.replica]
        context = tuple([names[place] for place in row.blocks])
        if replica not in replicas.live or len(set(context)) != len(context):
            continue
        replicas.distrust(replica, rebuild=False)
        sizes = tuple([lengths[place] for place in row.blocks])
        request = PlanRequest(
            request_id=row.request,
            head=batch.heads[row.head],
            head_tokens=row.head_tokens,
            context=context,
            block_tokens=sizes,
            tail_tokens=row.tokens_left - row.head_tokens - sum(sizes),
        )
        its_tokens = tokens if alike else dict(zip(context, sizes, strict=True))
        record = record_of(request, context, its_tokens, replica, 0)
        record.state = State.RESIDENT
        memory.remember(row.request, record, context, replicas.bit(replica))
        if len(memory.records) > index.max_records:
            memory.remove(next(iter(memory.records)))
        count += 1
    return count


def _possible(batch: Batch, row: _Row, lengths: Sequence[int]) -> bool:
    """Whether the row's names are in the batch's tables, and its tokens add up."""
    places = row.blocks
    if not (0 <= row.replica < len(batch.replicas) and 0 <= row.head < len(batch.heads)):
        return False
    if places and not (min(places) >= 0 and max(places) < len(lengths)):
        return False
    sizes = [lengths[place] for place in places]
    if row.tokens_left >= MOST_TOKENS:
        return False
    return min(sizes, default=0) >= 0 and 0 <= row.head_tokens <= row.tokens_left - sum(sizes)


def pack(entries: Sequence[Kept]) -> Batch:
    """Make one message of many."""
    replicas: dict[ReplicaId, int] = {}
    heads: dict[HeadId, int] = {}
    blocks: dict[tuple[BlockId, int], int] = {}
    rows = [
        _Row(
            entry.request,
            replicas.setdefault(entry.replica, len(replicas)),
            heads.setdefault(entry.head, len(heads)),
            entry.head_tokens,
            tuple(
                [
                    blocks.setdefault(block, len(blocks))
                    for block in zip(entry.context, entry.block_tokens, strict=True)
                ]
            ),
            entry.tokens_left,
        )
        for entry in entries
    ]
    return Batch(list(replicas), list(heads), list(blocks), rows)
