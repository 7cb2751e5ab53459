"""Traces: requests in order of arrival, as block ids and token counts.

Two formats, each JSON lines, plain or .gz. Ours: `context` holds ids of `blocks.tsv` beside it.
Generic: `{"question": text, "documents": [text or {"title", "text"}]}`, whose tokens are
estimated at four bytes each, the template left out.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

import msgspec

from cp_ray.core.pages import Piece
from cp_ray.core.types import BlockId, Context, RequestId
from cp_ray.errors import ConfigError

BYTES_PER_TOKEN = 4


class History(msgspec.Struct, frozen=True):
    """What the earlier turns of a conversation put before a prompt.

    pieces: all of it, in order. seen: the blocks in it. predecessor: the last turn's request.
    """

    pieces: tuple[Piece, ...]
    seen: frozenset[BlockId]
    predecessor: RequestId

    @property
    def tokens(self) -> int:
        """Length of the pieces together."""
        return sum(length for _, length in self.pieces)


class TraceRequest(msgspec.Struct, frozen=True):
    """One request. context: distinct, best first. block_tokens: same order and length.

    answer_tokens: of the reply, where a later turn repeats it. movable: False where a block's id
    stands for all before it, too. history: filled in only while conversations are replayed.
    """

    request_id: RequestId
    conversation: str
    context: Context
    block_tokens: tuple[int, ...]
    question_tokens: int
    answer_tokens: int = 0
    movable: bool = True
    history: History | None = None

    @property
    def lengths(self) -> dict[BlockId, int]:
        """Tokens of each block."""
        return dict(zip(self.context, self.block_tokens, strict=True))

    def reordered(self, context: Context) -> TraceRequest:
        """The same request with its blocks in this order."""
        lengths = self.lengths
        tokens = tuple(lengths[block] for block in context)
        return msgspec.structs.replace(self, context=context, block_tokens=tokens)


class Trace(msgspec.Struct, frozen=True):
    """name: the folder's, or the file's without its endings."""

    name: str
    requests: tuple[TraceRequest, ...]

    def ceiling(self) -> float:
        """Share of block tokens in blocks that an earlier request had: no order reuses more."""
        seen: set[BlockId] = set()
        known = total = 0
        for request in self.requests:
            for block, tokens in zip(request.context, request.block_tokens, strict=True):
                total += tokens
                known += tokens if block in seen else 0
            seen.update(request.context)
        return known / total if total else 0.0


class _OurLine(msgspec.Struct):
    request_id: int | str
    context: list[int | str]
    session: int | str = ""
    question_tokens: int = 0
    answer_tokens: int = 0
    movable: bool = True


class _Document(msgspec.Struct):
    text: str
    title: str = ""


class GenericLine(msgspec.Struct):
    """One line of the generic format."""

    question: str
    documents: list[str | _Document]
    conversation: str = ""

    def texts(self) -> list[tuple[str, str]]:
        """(title, text) of each document."""
        return [("", d) if isinstance(d, str) else (d.title, d.text) for d in self.documents]


class _Keys(msgspec.Struct):
    context: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def read_trace(path: Path, *, k: int | None = None, requests: int | None = None) -> Trace:
    """Read a trace folder or file. k: only the first blocks of each context.

    requests: only the first. Raises ConfigError with the file and line that cannot be read.
    """
    file = trace_file(path)
    name = path.name if path.is_dir() else file.name.split(".")[0]
    blocks: Mapping[str, int] | None = None
    read: dict[RequestId, TraceRequest] = {}
    for number, line in numbered_lines(file):
        if len(read) == requests:
            break
        where = f"{file}, line {number}"
        try:
            if msgspec.json.decode(line, type=_Keys).context is msgspec.UNSET:
                request = _generic(msgspec.json.decode(line, type=GenericLine), number, k)
            else:
                blocks = block_lengths(file.parent) if blocks is None else blocks
                request = _ours(msgspec.json.decode(line, type=_OurLine), blocks, k)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ConfigError(f"{where}: {error}", param="trace") from error
        if request.request_id in read:
            raise ConfigError(f"{where}: request_id {request.request_id} again", param="trace")
        read[request.request_id] = request
    if not read:
        raise ConfigError(f"{file} holds no request", param="trace")
    return Trace(name, tuple(read.values()))


def trace_file(path: Path) -> Path:
    """The file of a trace folder, or the file itself."""
    if not path.exists():
        raise ConfigError(f"no such trace: {path}; name a folder or a .jsonl file", param="trace")
    if not path.is_dir():
        return path
    for name in ("trace.jsonl.gz", "trace.jsonl"):
        if (path / name).exists():
            return path / name
    raise ConfigError(
        f"{path} has no trace.jsonl or trace.jsonl.gz; name the file itself", param="trace"
    )


def _open(file: Path) -> TextIO:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8")
    return file.open(encoding="utf-8")


def numbered_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers; ConfigError when they cannot be read."""
    try:
        with _open(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", param="trace") from error


def block_lengths(folder: Path) -> dict[str, int]:
    """Tokens of each block by the blocks.tsv of a trace folder."""
    for name in ("blocks.tsv.gz", "blocks.tsv"):
        if (folder / name).exists():
            return block_table(folder / name)
    raise ConfigError(
        f"{folder} has no blocks.tsv or blocks.tsv.gz, which gives the length of each block",
        param="trace",
    )


def block_table(file: Path) -> dict[str, int]:
    """Tokens of each block by a table of block_id, tab, tokens, under a line of names."""
    lengths: dict[str, int] = {}
    for number, line in numbered_lines(file):
        fields = line.rstrip("\n").split("\t")
        if number == 1:
            continue
        if len(fields) < 2 or not fields[1].isdigit() or fields[0] in lengths:
            raise ConfigError(
                f"{file}, line {number}: expected a new block_id, a tab and its tokens, "
                f"got {line.strip()[:60]!r}",
                param="trace",
            )
        lengths[fields[0]] = int(fields[1])
    return lengths


def _ours(line: _OurLine, blocks: Mapping[str, int], k: int | None) -> TraceRequest:
    ids = [str(block) for block in line.context[:k]]
    unknown = [block for block in ids if block not in blocks]
    if unknown:
        raise ValueError(f"context: block {unknown[0]} is not in blocks.tsv")
    if len(set(ids)) < len(ids):
        raise ValueError("context: a block stands twice; keep its first place")
    return TraceRequest(
        RequestId(str(line.request_id)),
        str(line.session),
        tuple(BlockId(block) for block in ids),
        tuple(blocks[block] for block in ids),
        line.question_tokens,
        line.answer_tokens,
        line.movable,
    )


def _generic(line: GenericLine, number: int, k: int | None) -> TraceRequest:
    lengths: dict[BlockId, int] = {}
    for title, body in line.texts()[:k]:
        text = rendered(title, body)
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        lengths[BlockId(digest)] = estimate_tokens(text)
    return TraceRequest(
        RequestId(str(number)),
        line.conversation,
        tuple(lengths),
        tuple(lengths.values()),
        estimate_tokens(line.question),
    )


def rendered(title: str, text: str) -> str:
    """A document as one text, without the label and blank line that a prompt adds."""
    return f"{title}\n{text}" if title else text


def estimate_tokens(text: str) -> int:
    """Four bytes each, and one at least."""
    return max(1, len(text.encode()) // BYTES_PER_TOKEN)
