"""Which blocks stand in a turn's prompt: new ones in full, repeated ones as references.

Three steps, each of which may only shorten the prompt: equal documents collapse; blocks that
earlier turns hold become a location annotation (Algorithm 3); parts of a block that other texts of
the conversation hold become pointers (core/chunk_dedup.py). Whatever is named stands above, and
nothing else there has its name.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from cp_ray.core.annotation import heading_label, names_in, order_renamed, ranked_labels
from cp_ray.core.chunk_dedup import ChunkDedup, Source, make_source
from cp_ray.core.dedup import deduplicate
from cp_ray.core.prompt import (
    Block,
    location_block,
    make_block,
    ranking_block,
    shortened_block,
    text_digest,
    unclear,
)
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
    stood = begun.seen if begun else ()
    stands = carried((*earlier, *([begun] if begun else [])))
    repeated: Context = ()
    if refer:
        seen = {block for turn in earlier for block in turn.seen}
        repeated = deduplicate(tuple(block.id for block in given), seen).repeated
    known = {*repeated, *stood}
    carrying = [*stands, *((block.label, block.text) for block in given if block.id not in known)]
    shared = unclear(carrying)
    labels = [label for label, _ in carrying]
    repeated = tuple(b.id for b in given if b.id in repeated and b.label not in shared)
    blocks: dict[BlockId, Block] = {}
    placed: dict[BlockId, tuple[Origin, ...]] = {}
    if begun is not None:
        for number, text in zip(begun.context, begun.pieces, strict=False):
            blocks[number] = Block(number, heading_label(text) or "", text, text_digest(text))
            placed[number] = (Origin(blocks[number].label or text.strip(), None),)
    if partial is not None:
        for label, text in stands:
            partial.add(_source(label, text))
    runs = [(a, list(r)) for a, r in itertools.groupby(given, lambda block: block.id in repeated)]
    ranked = sum(again for again, _ in runs) > 1 and not any(b.label in shared for b in given)
    region = tenant.region(public=False)

    def refer_to(reference: Block, referred: Sequence[Block]) -> None:
        again = [b for b in referred if b.id in repeated]
        if begun is not None and reference.id not in blocks and _are_named(again, begun):
            return  # each result of a tool would add one for all that this turn refers to anyway
        blocks.setdefault(reference.id, reference)
        placed[reference.id] = tuple(origins[b.id] for b in again)

    for again, run in runs:
        if again:
            if not ranked:
                refer_to(location_block(region, run, labels), run)
            continue
        for block in run:
            shown = block
            if block.id not in stood:
                shown = _shorten(partial, tenant, block) if partial is not None else block
                blocks.setdefault(shown.id, shown)
            placed[shown.id] = (origins[block.id],)
    if ranked:
        refer_to(ranking_block(region, given, labels), given)
    full = tuple(block.id for block in given if block.id not in repeated)
    return Placed(
        tuple(blocks.values()),
        {block: placed[block] for block in blocks},
        tuple(origins[block].name for block in repeated),
        tuple(dict.fromkeys((*stood, *full))),
    )


def ending_of(begun: Turn, blocks: Sequence[Block]) -> tuple[str, ...]:
    """What stood behind the turn's blocks, its ranking clear among the new ones, too.

    There is no ranking any more where a new block has the label of one that it ranks.
    """
    ending = begun.pieces[len(begun.context) :]
    if len(ending) < 2:
        return ending
    ranked = [block.label for block in blocks if block.id in begun.context and block.label]
    now = [block.label for block in blocks if block.label]
    if ranked_labels(ending[0], ranked) is None:
        return ending
    if not unclear((block.label, block.text) for block in blocks).isdisjoint(ranked):
        return ending[1:]
    return (order_renamed(ending[0], ranked, now), *ending[1:])


class Standing:
    """What earlier turns hold, asked of documents that stand in messages.

    begun: as in `place`; its blocks stand below earlier messages, but take labels from all.
    """

    def __init__(self, tenant: Tenant, earlier: Sequence[Turn], begun: Turn | None = None) -> None:
        turns = (*earlier, *([begun] if begun else []))
        stands = carried(turns)
        self._tenant = tenant
        self._earlier = {block for turn in earlier for block in turn.seen}
        self._stands = {block for turn in turns for block in turn.seen}
        self._labels = {label for label, _ in stands}
        self._unclear = unclear(stands)

    def holds(self, document: Document) -> bool:
        """Whether a later turn may refer to its block."""
        return self._block(document).id in self._earlier

    def can_be_named(self, document: Document) -> bool:
        """Whether no other block has its label."""
        block = self._block(document)
        return block.label not in (self._unclear if block.id in self._stands else self._labels)

    def _block(self, document: Document) -> Block:
        region = self._tenant.region(public=document.public)
        return make_block(region, document.title, document.text)


def carried(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    """(label, text) of the blocks that these turns hold, as sent."""
    pieces = [piece for turn in turns for piece in turn.pieces[: len(turn.context)]]
    return [(label, piece) for piece in pieces if (label := heading_label(piece)) is not None]


def _are_named(blocks: Sequence[Block], begun: Turn) -> bool:
    """Whether references of the turn as it was sent before name all of these blocks."""
    names: set[str] = set()
    for piece in begun.pieces[: len(begun.context)]:
        if heading_label(piece) is None:
            names |= names_in(piece)
    return all(names & {*block.label.split(" "), block.label.replace(" ", "-")} for block in blocks)


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
