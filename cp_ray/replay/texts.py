"""From texts to a trace: cut passages into blocks, retrieve for each question, count tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from tqdm import tqdm

from cp_ray.errors import ConfigError
from cp_ray.replay.trace import estimate_tokens, rendered
from cp_ray.retrieval.bm25 import Bm25Retriever, Document

CountTokens = Callable[[str], int]


class Passage(msgspec.Struct, frozen=True):
    """A text that may be retrieved. part: only questions of the same part can retrieve it."""

    id: str
    text: str
    title: str = ""
    part: str = ""


class Question(msgspec.Struct, frozen=True):
    """What is asked. query: the text to retrieve with, empty = the question itself.

    passages: ids of its passages, best first, where the source names them; None = retrieve.
    conversation: turns of one follow each other in the order of the list.
    """

    text: str
    answer: str = ""
    query: str = ""
    part: str = ""
    conversation: str = ""
    passages: tuple[str, ...] | None = None


class Texts(msgspec.Struct, frozen=True):
    """What a text format gives. words, overlap: how it cuts passages, 0 = not at all."""

    passages: list[Passage]
    questions: list[Question]
    words: int = 0
    overlap: int = 0


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of trace.jsonl: see docs/traces.md."""

    request_id: int | str
    session: str
    turn: int
    context: list[int]
    question_tokens: int
    answer_tokens: int = 0
    output_tokens: int = 0
    arrival_ms: int | None = None
    movable: bool = True


class Rows(msgspec.Struct, frozen=True):
    """A trace to be written. blocks: (tokens, source id) by block number."""

    lines: list[Line]
    blocks: list[tuple[int, str]]


def to_rows(texts: Texts, k: int, count: CountTokens) -> Rows:
    """Blocks in the order of their passages; `k` at most per question that must retrieve."""
    blocks = [block for passage in texts.passages for block in _cut(passage, texts)]
    number = {block.id: place for place, block in enumerate(blocks)}
    if len(number) < len(blocks):
        raise ConfigError("two passages have the same id; give each its own", param="source")
    retrieve = _Retrieval(blocks)
    turns: dict[str, int] = {}
    lines = []
    for place, question in enumerate(tqdm(texts.questions, "retrieve", disable=None, delay=1)):
        ids = question.passages
        if ids is None:
            ids = tuple(retrieve(question.part, question.query or question.text, k))
        session = question.conversation or str(place)
        turn = turns[session] = turns.get(session, -1) + 1
        lines.append(
            Line(
                place,
                session,
                turn,
                [number[block] for block in dict.fromkeys(ids)],
                count(question.text),
                count(question.answer) if question.answer else 0,
            )
        )
    measured = tqdm(blocks, "count tokens", disable=None, delay=1)
    return Rows(lines, [(count(rendered(b.title, b.text)), b.id) for b in measured])


def token_counter(tokenizer: Path | None) -> CountTokens:
    """Counts by a tokenizer.json, or four bytes a token without one."""
    if tokenizer is None:
        return estimate_tokens
    from tokenizers import Tokenizer

    try:
        loaded = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises plain Exception for a bad file
        raise ConfigError(f"--tokenizer: {tokenizer}: {error}", param="tokenizer") from error
    return lambda text: len(loaded.encode(text, add_special_tokens=False).ids)


class _Retrieval:
    """One BM25 index per part, made when first asked."""

    def __init__(self, blocks: Sequence[Passage]) -> None:
        self._parts: dict[str, list[Passage]] = {}
        for block in blocks:
            self._parts.setdefault(block.part, []).append(block)
        self._made: dict[str, Bm25Retriever] = {}

    def __call__(self, part: str, query: str, k: int) -> list[str]:
        if part not in self._parts:
            return []
        if part not in self._made:
            self._made[part] = Bm25Retriever(
                [Document(id=b.id, title=b.title, text=b.text) for b in self._parts[part]]
            )
        return [document["id"] for document in self._made[part].search(query, k)]


def _cut(passage: Passage, texts: Texts) -> Iterator[Passage]:
    """Windows of `words` words, each beginning `overlap` before the last one's end."""
    words = passage.text.split()
    if not texts.words or len(words) <= texts.words:
        yield passage
        return
    step = texts.words - texts.overlap
    for number, start in enumerate(range(0, len(words) - texts.overlap, step)):
        yield msgspec.structs.replace(
            passage,
            id=f"{passage.id}#{number}",
            text=" ".join(words[start : start + texts.words]),
        )
