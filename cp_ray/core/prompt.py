"""Pieces of a prompt, in order. Equal blocks give equal bytes, and equal tokens.

Layout (paper 5.3): system, blocks in planned order, order annotation, question. Each piece is
tokenized alone, so block borders never merge and token counts of blocks add up exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from cp_ray.core.annotation import label_of, location_annotation, order_annotation
from cp_ray.core.types import BlockId


class Block(msgspec.Struct, frozen=True):
    """One context block as it stands in a prompt. text: the exact rendered bytes."""

    id: BlockId
    label: str
    text: str


def make_block(region: str, title: str | None, text: str) -> Block:
    """Render a document. region: whose requests may share it; it salts the id, not the label."""
    label = label_of(content_of(title, text))
    heading = f"[Doc {label}] {title}" if title else f"[Doc {label}]"
    return _block(region, label, f"{heading}\n{text}\n\n")


def content_of(title: str | None, text: str) -> bytes:
    """What a label is made of."""
    return f"{title or ''}\0{text}".encode()


def shortened_block(region: str, block: Block, text: str) -> Block:
    """`block` with parts of its text replaced by pointers (core/chunk_dedup.py)."""
    return _block(region, block.label, text)


def location_block(region: str, blocks: Sequence[Block]) -> Block:
    """The location annotation that replaces a run of blocks; planned like a block of its own."""
    labels = [block.label for block in blocks]
    return _block(region, ", ".join(labels), location_annotation(labels))


def body(ordered: Sequence[Block], ranked: Sequence[Block]) -> tuple[str, ...]:
    """Texts between head and question: the blocks, and the ranking where the order hides it.

    ordered: as planned. ranked: the same blocks, best first, as the client gave them.
    """
    texts = tuple(block.text for block in ordered)
    if [block.id for block in ordered] == [block.id for block in ranked]:
        return texts
    return (*texts, order_annotation([block.label for block in ranked]))


def _block(region: str, label: str, rendered: str) -> Block:
    digest = hashlib.blake2b(f"{region}\0{rendered}".encode(), digest_size=16).hexdigest()
    return Block(BlockId(digest), label, rendered)
