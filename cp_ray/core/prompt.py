"""Pieces of a prompt, in order. Equal blocks give equal bytes, and equal tokens.

Layout (paper 5.3): system, blocks in planned order, order annotation, question. Each piece is
tokenized alone, so block borders never merge and token counts of blocks add up exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from cp_ray.core.annotation import (
    label_of,
    location_annotation,
    order_annotation,
    ranked_locations,
    short_names,
)
from cp_ray.core.types import BlockId


class Block(msgspec.Struct, frozen=True):
    """One context block as it stands in a prompt.

    text: the exact rendered bytes. digest: `text_digest` of it.
    """

    id: BlockId
    label: str
    text: str
    digest: bytes


def text_digest(text: str) -> bytes:
    """16 bytes that stand for a text. SHA-256: of all that would do the one CPUs have built in."""
    return hashlib.sha256(text.encode()).digest()[:16]


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


def unclear(carried: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Labels that more than one text carries: nothing may be named by them.

    carried: (label, text) of blocks.
    """
    texts: dict[str, str] = {}
    return frozenset(label for label, text in carried if texts.setdefault(label, text) != text)


def location_block(region: str, named: Sequence[Block], among: Iterable[str]) -> Block:
    """The location annotation that replaces a run of blocks; planned like a block of its own.

    among: labels of all blocks of the conversation up to this turn and with it.
    """
    names = short_names([block.label for block in named], among)
    return _block(region, ", ".join(names), location_annotation(names))


def ranking_block(region: str, ranked: Sequence[Block], among: Iterable[str]) -> Block:
    """As `location_block`, for all blocks of a turn whose new ones stand before it."""
    names = short_names([block.label for block in ranked], among)
    return _block(region, ", ".join(names), ranked_locations(names))


def ranking_of(ranked: Sequence[Block]) -> str:
    """The order annotation of a prompt that has no other blocks; labels must be clear."""
    labels = [block.label for block in ranked]
    return order_annotation(short_names(labels, labels))


def body(ordered: Sequence[Block], ranked: Sequence[Block]) -> tuple[str, ...]:
    """Texts between head and question: the blocks, and the ranking where the order hides it.

    ordered: as planned. ranked: the same blocks, best first, as the client gave them.
    """
    texts = tuple(block.text for block in ordered)
    if [block.id for block in ordered] == [block.id for block in ranked]:
        return texts
    return (*texts, ranking_of(ranked))


def _block(region: str, label: str, rendered: str) -> Block:
    digest = text_digest(rendered)
    number = hashlib.blake2b(region.encode() + b"\0" + digest, digest_size=16).hexdigest()
    return Block(BlockId(number), label, rendered, digest)
