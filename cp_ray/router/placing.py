"""Which blocks stand in a turn's prompt: new ones in full, repeated ones as references.

Three steps, each of which may only shorten the prompt: equal documents collapse; a block that an
earlier turn holds becomes its location annotation (Algorithm 3); parts of a block that other
texts of the conversation hold become pointers (core/chunk_dedup.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from cp_ray.core.chunk_dedup import ChunkDedup, Source, heading_label, make_source
from cp_ray.core.dedup import deduplicate
from cp_ray.core.prompt import Block, location_block, make_block, shortened_block
from cp_ray.core.types import BlockId, Context
from cp_ray.router.api import Document
from cp_ray.router.auth import Tenant
from cp_ray.router.conversation import Turn

_CACHED_CHARS = 1 << 15
"""Texts up to this have their anchors kept: some 1,000 of them."""


class Origin(msgspec.Struct, frozen=True):
    """Where a block comes from. name: the client's id of it.

    position: in `documents`; None when the client sent it with an earlier request of the turn.
    """

    name: str
    position: int | None


class Placed(msgspec.Struct, frozen=True):
    """What stands before the question.

    blocks: as they will stand, best first. origins: of every one; a reference stands for several
    documents. repeated: names of the documents that an earlier turn holds. seen: blocks that a
    later turn may refer to.
    """

    blocks: tuple[Block, ...]
    origins: dict[BlockId, tuple[Origin, ...]]
    repeated: tuple[str, ...]
    seen: tuple[BlockId, ...]


def blocks_of(
    documents: Sequence[Document], tenant: Tenant
) -> tuple[tuple[Block, ...], dict[BlockId, Origin]]:
    """Distinct blocks, best first: equal documents collapse to the first."""
    blocks: dict[BlockId, Block] = {}
    origins: dict[BlockId, Origin] = {}
    for position, document in enumerate(documents):
        region = tenant.region(public=document.public)
        block = make_block(region, document.title, document.text)
        if block.id not in blocks:
            blocks[block.id] = block
            origins[block.id] = Origin(document.id or f"documents.{position}", position)
    return tuple(blocks.values()), origins


def place(
    documents: Sequence[Document],
    tenant: Tenant,
    earlier: Sequence[Turn],
    begun: Turn | None,
    partial: ChunkDedup | None,
    *,
    refer: bool,
) -> Placed:
    """Blocks of this turn.

    earlier: turns as they will be sent. begun: this very turn as it was sent before (a tool's
    result has come since): what stood in it stands first, as it stood. refer: whether references
    are wanted. partial: where parts of blocks shall be shortened.
    """
    given, origins = blocks_of(documents, tenant)
    seen = {block for turn in earlier for block in turn.seen}
    repeated: Context = ()
    if refer and seen:
        repeated = deduplicate(tuple(block.id for block in given), seen).repeated
    blocks: dict[BlockId, Block] = {}
    placed: dict[BlockId, tuple[Origin, ...]] = {}
    stood: tuple[BlockId, ...] = ()
    if begun is not None:
        stood = begun.seen
        for number, text in zip(begun.context, begun.pieces, strict=False):
            blocks[number] = Block(number, heading_label(text) or "", text)
            placed[number] = (Origin(blocks[number].label or text.strip(), None),)
    if partial is not None:
        _learn(partial, earlier, begun)
    for again, run in itertools.groupby(given, lambda block: block.id in repeated):
        one_run = list(run)
        if again:
            reference = location_block(tenant.region(public=False), one_run)
            blocks.setdefault(reference.id, reference)
            placed[reference.id] = tuple(origins[block.id] for block in one_run)
            continue
        for block in one_run:
            shown = block
            if block.id not in stood:
                shown = _shorten(partial, tenant, block) if partial is not None else block
                blocks.setdefault(shown.id, shown)
            placed[shown.id] = (origins[block.id],)
    full = tuple(block.id for block in given if block.id not in repeated)
    return Placed(
        tuple(blocks.values()),
        {block: placed[block] for block in blocks},
        tuple(origins[block].name for block in repeated),
        tuple(dict.fromkeys((*stood, *full))),
    )


def _learn(partial: ChunkDedup, earlier: Sequence[Turn], begun: Turn | None) -> None:
    """Whole blocks of the turns as sent; nothing points at a question or an annotation."""
    for turn in (*earlier, *([begun] if begun else [])):
        for piece in turn.pieces[: len(turn.context)]:
            label = heading_label(piece)
            if label is not None:
                partial.add(_source(label, piece))


def _shorten(partial: ChunkDedup, tenant: Tenant, block: Block) -> Block:
    heading, newline, text = block.text.partition("\n")
    shortened = partial.shorten(text)
    if shortened.pointers:
        region = tenant.region(public=False)
        block = shortened_block(region, block, f"{heading}{newline}{shortened.text}")
    partial.add(_source(block.label, block.text))
    return block


def _source(label: str, text: str) -> Source:
    return _kept_source(label, text) if len(text) <= _CACHED_CHARS else make_source(label, text)


_kept_source = lru_cache(maxsize=1024)(make_source)
