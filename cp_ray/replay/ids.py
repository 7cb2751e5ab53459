"""Formats that hold block ids already: Mooncake's hashes, and folders of our own format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay.texts import Line, Passage, Question, Rows, Texts
from cp_ray.replay.trace import block_lengths, block_table, numbered_lines, trace_file

T = TypeVar("T")

MOONCAKE_BLOCK = 512
"""Tokens of one hashed block; the last of a prompt may hold fewer."""


class _Hashed(msgspec.Struct):
    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


def mooncake(source: Path, _: Path | None) -> Rows:
    """Mooncake's FAST'25 traces, one JSON object a line: a hash stands for all before it, too."""
    return _mooncake(
        (f"{source}, line {number}", _decoded(line, _Hashed, f"{source}, line {number}"))
        for number, line in numbered_lines(source)
    )


def mooncake_runs(source: Path, _: Path | None) -> Rows:
    """The same as lists [timestamp, input, output, [first, count, ...]] under a line of names."""

    def lines() -> Iterator[tuple[str, _Hashed]]:
        for number, line in numbered_lines(source):
            if number == 1:
                continue
            where = f"{source}, line {number}"
            arrival, tokens, output, runs = _decoded(line, tuple[int, int, int, list[int]], where)
            if len(runs) % 2:
                raise ConfigError(f"{where}: runs are pairs of first and count", param="source")
            ids = [
                first + n
                for first, count in zip(runs[::2], runs[1::2], strict=True)
                for n in range(count)
            ]
            yield where, _Hashed(arrival, tokens, output, ids)

    return _mooncake(lines())


def _mooncake(requests: Iterator[tuple[str, _Hashed]]) -> Rows:
    number: dict[int, int] = {}
    tokens: list[int] = []
    lines = []
    for place, (where, request) in enumerate(requests):
        ids = request.hash_ids
        rest = request.input_length - MOONCAKE_BLOCK * (len(ids) - 1)
        if not ids or not 0 < rest <= MOONCAKE_BLOCK or len(set(ids)) < len(ids):
            raise ConfigError(
                f"{where}: {len(ids)} different hashes of {MOONCAKE_BLOCK} tokens do not make "
                f"{request.input_length} tokens",
                param="source",
            )
        context = [number.setdefault(one, len(number)) for one in ids]
        tokens += [0] * (len(number) - len(tokens))
        for block in context[:-1]:
            tokens[block] = MOONCAKE_BLOCK
        tokens[context[-1]] = max(tokens[context[-1]], rest)
        lines.append(
            Line(
                place,
                str(place),
                0,
                context,
                0,
                output_tokens=request.output_length,
                arrival_ms=request.timestamp,
                movable=False,
            )
        )
    names = sorted(number, key=number.__getitem__)
    return Rows(lines, [(tokens[n], str(name)) for n, name in enumerate(names)])


class _OurLine(msgspec.Struct):
    request_id: int | str
    context: list[int | str]
    session: int | str = ""
    turn: int = 0
    question_tokens: int = 0
    answer_tokens: int = 0
    output_tokens: int = 0
    carry_tokens: int = 0


def cp_ray_lines(source: Path, blocks: Path | None) -> Rows:
    """A trace of our own format, made complete: with its blocks from `blocks`, only those used.

    carry_tokens (what an agent hands on) counts as part of the question: nobody shares it.
    """
    file = trace_file(source)
    lengths = block_lengths(file.parent) if blocks is None else block_table(blocks)
    number: dict[str, int] = {}
    lines = []
    for place, text in numbered_lines(file):
        line = _decoded(text, _OurLine, f"{file}, line {place}")
        ids = [str(block) for block in line.context]
        unknown = [block for block in ids if block not in lengths]
        if unknown:
            raise ConfigError(
                f"{file}, line {place}: block {unknown[0]} has no length; name its table with "
                "--blocks",
                param="blocks",
            )
        lines.append(
            Line(
                line.request_id,
                str(line.session),
                line.turn,
                [number.setdefault(block, len(number)) for block in ids],
                line.question_tokens + line.carry_tokens,
                line.answer_tokens,
                line.output_tokens,
            )
        )
    return Rows(lines, [(lengths[block], block) for block in number])


class _Asked(msgspec.Struct):
    question: str
    context: list[int]
    session: int | str = ""
    answers: Sequence[str] = ()


class _Told(msgspec.Struct):
    block_id: int
    text: str
    title: str = ""


def with_texts(source: Path) -> Texts:
    """A folder with blocks.jsonl.gz (block_id, text) and requests.jsonl.gz (question, context)."""
    passages = []
    for number, line in numbered_lines(source / "blocks.jsonl.gz"):
        told = _decoded(line, _Told, f"{source / 'blocks.jsonl.gz'}, line {number}")
        passages.append(Passage(str(told.block_id), told.text, told.title))
    known = {passage.id for passage in passages}
    questions = []
    for number, line in numbered_lines(source / "requests.jsonl.gz"):
        where = f"{source / 'requests.jsonl.gz'}, line {number}"
        asked = _decoded(line, _Asked, where)
        ids = tuple(str(block) for block in asked.context)
        if not known.issuperset(ids):
            raise ConfigError(f"{where}: a block that blocks.jsonl.gz has not", param="source")
        answer = str(asked.answers[0]) if asked.answers else ""
        questions.append(
            Question(asked.question, answer, conversation=str(asked.session), passages=ids)
        )
    return Texts(passages, questions)


def _decoded(line: str, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{where}: {error}", param="source") from error
