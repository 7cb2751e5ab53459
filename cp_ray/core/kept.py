"""What is kept of a request across a restart of the index, and how it comes back.

Only requests that ended well are kept: of these it is certain in which order which tokens were
computed where. What their replica still has of them is not: after a restart each replica is
believed nothing until its own dump has confirmed, shortened or removed what came back.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Annotated

import msgspec

from cp_ray.core.index import ContextIndex
from cp_ray.core.interned import interned
from cp_ray.core.record import CODE, Record, State
from cp_ray.core.types import BlockId, Context, HeadId, ReplicaId, RequestId
from cp_ray.errors import WireError

TABLE = 65_536
"""Blocks that messages of one snapshot share: some 10 MB, and most of what is popular."""
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


Place = Annotated[int, msgspec.Meta(ge=0)]
Tokens = Annotated[int, msgspec.Meta(ge=0, lt=MOST_TOKENS)]


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Kept whose names are places in the tables of its batch."""

    request: RequestId
    replica: Place
    head: Place
    head_tokens: Tokens
    blocks: tuple[Place, ...]
    tokens_left: Tokens


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Many Kept as one message: each name once, and each block's length with its name.

    before: so many blocks of the messages before it count, too; its rows' places go on behind
    them. 0: the message stands alone.
    """

    before: Place
    replicas: list[ReplicaId]
    heads: list[HeadId]
    blocks: list[tuple[BlockId, Tokens]]
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


class Recaller:
    """Puts messages back into an index, in the order in which a Packer made them."""

    def __init__(self, index: ContextIndex) -> None:
        self._index = index
        self._names: list[BlockId] = []
        self._lengths: list[int] = []

    def recall(self, batch: Batch) -> int:
        """Put records back, oldest first; returns how many.

        Their replicas are believed nothing from then on, until each has sent a dump. Left out:
        those of replicas that are not live, those known already, and rows that no request can
        have. Beyond the capacity the oldest goes. Raises WireError when a message before this one
        is missing.
        """
        # A restarted index does this 100,000 times before it is as good as before, so the loop
        # makes no object that does not stay.
        self._learn(batch)
        name_of, length_of = self._names.__getitem__, self._lengths.__getitem__
        memory, replicas = self._index.memory, self._index.replicas
        records, max_records = memory.records, self._index.max_records
        bits = [replicas.bit(name) if name in replicas.live else None for name in batch.replicas]
        heads, resident = batch.heads, State.RESIDENT
        count = 0
        doubted = set()
        for row in batch.rows:
            if row.request in records or row.replica >= len(bits) or row.head >= len(heads):
                continue
            bit = bits[row.replica]
            try:
                context = tuple(map(name_of, row.blocks))
                ends = array(CODE, accumulate(map(length_of, row.blocks)))
            except (IndexError, OverflowError):
                continue
            whole = row.head_tokens + (ends[-1] if ends else 0)
            if bit is None or whole > row.tokens_left or len(set(context)) != len(context):
                continue
            record = Record(
                heads[row.head],
                row.head_tokens,
                ends.tobytes(),
                batch.replicas[row.replica],
                resident,
                row.tokens_left,
                0,
            )
            memory.remember(row.request, record, context, bit)
            doubted.add(record.replica)
            if len(records) > max_records:
                memory.remove_oldest()
            count += 1
        for replica in doubted:
            replicas.distrust(replica, rebuild=False)
        return count

    def _learn(self, batch: Batch) -> None:
        if batch.before == 0:
            self._names, self._lengths = [], []
        elif batch.before != len(self._names):
            raise WireError("a message of the snapshot is missing before this one")
        self._names += [interned(block) for block, _ in batch.blocks]
        self._lengths += [length for _, length in batch.blocks]


class Packer:
    """Makes the messages of one snapshot: a block is named once in TABLE blocks."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[BlockId, int], int] = {}

    def pack(self, entries: Sequence[Kept]) -> Batch:
        """Make one message of many."""
        if len(self._blocks) >= TABLE:
            self._blocks = {}
        blocks, before = self._blocks, len(self._blocks)
        replicas: dict[ReplicaId, int] = {}
        heads: dict[HeadId, int] = {}
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
        return Batch(before, list(replicas), list(heads), list(islice(blocks, before, None)), rows)


def recall(index: ContextIndex, batch: Batch) -> int:
    """Put a message back that stands alone; as `Recaller.recall`."""
    return Recaller(index).recall(batch)


def pack(entries: Sequence[Kept]) -> Batch:
    """Make one message that stands alone."""
    return Packer().pack(entries)
