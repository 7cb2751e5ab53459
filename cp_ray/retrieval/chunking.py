"""Split text into context blocks of about the same size, at paragraph and sentence borders.

A section is chunked by itself, so the same section gives the same blocks wherever it occurs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")

WORDS_PER_BLOCK = 45
"""About 70 tokens of SmolLM2 for English prose with code names in it."""

_UNDERLINE = re.compile(r'^([*=\-~^"#])\1{2,}\s*$')
_SENTENCE = re.compile(r"(?<=[.:;!?])\s+")


class Section(msgspec.Struct, frozen=True):
    """A heading and the text under it, up to the next heading. heading: empty at the very top."""

    heading: str
    text: str


def sections(text: str) -> list[Section]:
    """Split at underlined (reStructuredText) and `#` (Markdown) headings; empty ones fall away."""
    lines = text.splitlines()
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in lines:
        body = found[-1][1]
        if _UNDERLINE.match(line) and body and body[-1].strip():
            heading = body.pop().strip()
            found.append((heading, []))
        elif re.match(r"#{1,6} \S", line):
            found.append((line.lstrip("# ").strip(), []))
        else:
            body.append(line)
    return [
        Section(heading, "\n".join(body).strip("\n"))
        for heading, body in found
        if "\n".join(body).strip()
    ]


def chunk(text: str, words: int = WORDS_PER_BLOCK) -> list[str]:
    """Pack whole paragraphs up to about `words` words; a longer paragraph splits at sentences.

    Nothing is lost or repeated: the words of the chunks, in order, are the words of the text.
    """
    chunks: list[str] = []
    pending: list[str] = []
    count = 0
    for piece in _pieces(text, words):
        size = len(piece.split())
        # Close a block where that is nearer to the wanted size than going on.
        if pending and count + size - words > words - count:
            chunks.append("\n\n".join(pending))
            pending, count = [], 0
        pending.append(piece)
        count += size
    if pending and chunks and count < words // 3:
        chunks[-1] = "\n\n".join([chunks[-1], *pending])
    elif pending:
        chunks.append("\n\n".join(pending))
    return chunks


def split_evenly(items: Sequence[T], parts: int) -> list[list[T]]:
    """Contiguous shares in order, whose sizes differ by at most one; none empty if enough."""
    borders = [round(i * len(items) / parts) for i in range(parts + 1)]
    return [list(items[start:end]) for start, end in itertools.pairwise(borders)]


def _pieces(text: str, words: int) -> Iterator[str]:
    """Paragraphs, or runs of sentences where a paragraph is too long, or runs of words."""
    for paragraph in re.split(r"\n\s*\n", text):
        if not paragraph.strip():
            continue
        if len(paragraph.split()) <= words * 3 // 2:
            yield paragraph.strip("\n")
            continue
        run: list[str] = []
        for sentence in _SENTENCE.split(paragraph.strip()):
            for part in _word_runs(sentence, words):
                if run and sum(len(s.split()) for s in run) + len(part.split()) > words:
                    yield " ".join(run)
                    run = []
                run.append(part)
        yield " ".join(run)


def _word_runs(sentence: str, words: int) -> Iterator[str]:
    """Cut a sentence without end (a table, minified text) into runs of `words` words."""
    if len(sentence.split()) <= words:
        yield sentence
        return
    split = sentence.split()
    for start in range(0, len(split), words):
        yield " ".join(split[start : start + words])
