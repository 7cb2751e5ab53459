"""What is kept of a request across a restart of the index, and how it comes back.

Only requests that ended well are kept: of these it is certain in which order which tokens were
computed where. What their replica still has of them is not: after a restart each replica is
believed nothing until its own dump has confirmed, shortened or removed what came back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from cp_ray.core.index import ContextIndex
from cp_ray.core.record import State, record_of
from cp_ray.core.types import BlockId, Context, HeadId, PlanRequest, ReplicaId, RequestId


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


def recall(index: ContextIndex, entries: Iterable[Kept]) -> int:
    """Put records back, oldest first; returns how many.

    Their replicas are believed nothing from then on, until each has sent a dump. Left out: those
    of replicas that are not live, and those known already. Beyond the capacity the oldest goes.
    """
    count = 0
    memory, replicas = index.memory, index.replicas
    for entry in entries:
        if entry.request in memory.records or entry.replica not in replicas.live:
            continue
        replicas.distrust(entry.replica, rebuild=False)
        tokens = dict(zip(entry.context, entry.block_tokens, strict=True))
        request = PlanRequest(
            request_id=entry.request,
            head=entry.head,
            head_tokens=entry.head_tokens,
            context=entry.context,
            block_tokens=entry.block_tokens,
            tail_tokens=entry.tokens_left - entry.head_tokens - sum(entry.block_tokens),
        )
        record = record_of(request, entry.context, tokens, entry.replica, 0)
        record.state = State.RESIDENT
        bit = replicas.bit(entry.replica)
        memory.remember(entry.request, record, entry.context, bit)
        if len(memory.records) > index.max_records:
            memory.remove(next(iter(memory.records)))
        count += 1
    return count


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


def unpack(batch: Batch) -> Iterator[Kept]:
    """The entries of a message, in order. A row that is no possible record is left out."""
    for row in batch.rows:
        try:
            blocks = [batch.blocks[place] for place in row.blocks]
            replica, head = batch.replicas[row.replica], batch.heads[row.head]
        except IndexError:
            continue
        context = tuple([block for block, _ in blocks])
        lengths = tuple([length for _, length in blocks])
        fits = 0 <= row.head_tokens <= row.tokens_left - sum(lengths)
        if fits and min(lengths, default=0) >= 0 and len(set(context)) == len(context):
            yield Kept(
                row.request, replica, head, row.head_tokens, context, lengths, row.tokens_left
            )
