"""Readers of the public data sets, as their authors publish them (docs/traces.md: where, licence).

Each takes a file or folder and gives `Texts`; what a reader needs of a format is in its structs.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay.texts import Passage, Question, Texts
from cp_ray.replay.trace import numbered_lines

T = TypeVar("T")


class _Article(msgspec.Struct):
    title: str
    body: str
    url: str = ""
    source: str | None = ""
    published_at: str | None = ""


class _MultiHop(msgspec.Struct):
    query: str
    answer: str = ""


def multihop_rag(source: Path) -> Texts:
    """MultiHop-RAG (Tang and Yang 2024): a folder with corpus.json and MultiHopRAG.json."""
    articles = _decode(source / "corpus.json", list[_Article])
    questions = _decode(source / "MultiHopRAG.json", list[_MultiHop])
    return Texts(
        [Passage(f"a{n}", a.body, f"{a.title} ({a.source})") for n, a in enumerate(articles)],
        [Question(q.query, q.answer) for q in questions],
        words=1000,
        overlap=200,
    )


class _Section(msgspec.Struct):
    section_name: str | None
    paragraphs: list[str]


class _Span(msgspec.Struct):
    free_form_answer: str = ""
    extractive_spans: list[str] = []


class _Annotated(msgspec.Struct):
    answer: _Span


class _PaperQuestion(msgspec.Struct):
    question: str
    answers: list[_Annotated] = []


class _Paper(msgspec.Struct):
    title: str
    abstract: str
    full_text: list[_Section]
    qas: list[_PaperQuestion] = []


def qasper(source: Path) -> Texts:
    """QASPER (Dasigi et al. 2021): qasper-*-v0.3.json, or a folder with several."""
    passages, questions = [], []
    for file in _files(source, "qasper*.json"):
        for name, paper in _decode(file, dict[str, _Paper]).items():
            parts = [paper.abstract]
            for section in paper.full_text:
                parts += [section.section_name or "", *section.paragraphs]
            passages.append(Passage(name, "\n".join(parts), paper.title))
            for asked in paper.qas:
                spans = [a.answer for a in asked.answers]
                answers = [s.free_form_answer or ", ".join(s.extractive_spans) for s in spans]
                query = f"{asked.question} in {paper.title}"
                questions.append(Question(query, next(filter(None, answers), "")))
    return Texts(passages, questions, words=1000, overlap=200)


class _Found(msgspec.Struct):
    document_id: str
    text: str
    title: str | None = ""


class _Message(msgspec.Struct):
    speaker: str
    text: str
    contexts: list[_Found] = []


class _Conversation(msgspec.Struct):
    messages: list[_Message]


class _Task(msgspec.Struct):
    conversation_id: str
    input: list[_Message]
    contexts: list[_Found] = []
    targets: list[_Message] = []


def mt_rag(source: Path) -> Texts:
    """MT-RAG (Katsis et al. 2025): conversations.json, or a generation task's .jsonl.

    Passages are those that the file gives each turn; nothing is retrieved.
    """
    asked: list[tuple[str, str, list[_Found], str]] = []
    if source.suffix == ".jsonl":
        for number, line in numbered_lines(source):
            task = _decoded(line.encode(), _Task, f"{source}, line {number}")
            target = task.targets[0].text if task.targets else ""
            asked.append((task.conversation_id, task.input[-1].text, task.contexts, target))
    else:
        for number, talk in enumerate(_decode(source, list[_Conversation])):
            for user, agent in zip(talk.messages[::2], talk.messages[1::2], strict=False):
                asked.append((f"c{number}", user.text, agent.contexts, agent.text))
    passages = {
        found.document_id: Passage(found.document_id, found.text, found.title or "")
        for _, _, contexts, _ in asked
        for found in contexts
    }
    return Texts(
        list(passages.values()),
        [
            Question(
                text,
                answer,
                conversation=conversation,
                passages=tuple(found.document_id for found in contexts),
            )
            for conversation, text, contexts, answer in asked
        ],
    )


class _Memory(msgspec.Struct):
    question: str
    answer: str | int | float = ""


class _Person(msgspec.Struct):
    sample_id: str
    conversation: dict[str, msgspec.Raw]
    observation: dict[str, dict[str, list[tuple[str, str | list[str]]]]]
    qa: list[_Memory]


def locomo(source: Path) -> Texts:
    """LoCoMo (Maharana et al. 2024): locomo10.json. A memory is one observation with its date.

    A question retrieves among its own user's memories.
    """
    passages, questions = [], []
    for person in _decode(source, list[_Person]):
        name = person.sample_id
        for key, speakers in person.observation.items():
            when = person.conversation.get(key.replace("_observation", "_date_time"))
            date = str(json.loads(bytes(when))) if when is not None else ""
            facts = [text for told in speakers.values() for text, _ in told]
            passages += [
                Passage(f"{name}/{key}/{n}", f"{date}: {fact}", part=name)
                for n, fact in enumerate(facts)
            ]
        questions += [
            Question(qa.question, str(qa.answer), part=name, conversation=name) for qa in person.qa
        ]
    return Texts(passages, questions)


def fairytale_qa(source: Path) -> Texts:
    """FairytaleQA (Xu et al. 2022): a folder with *-story.csv and *-questions.csv, at any depth."""
    stories = {file.name: file for file in sorted(source.rglob("*-story.csv"))}
    passages, questions = [], []
    for name, file in stories.items():
        title = name.removesuffix("-story.csv").replace("-", " ")
        text = "\n".join(row["text"] for row in _table(file, ("section", "text")))
        passages.append(Passage(name.removesuffix("-story.csv"), text, title))
        for asked in sorted(source.rglob(name.replace("-story.csv", "-questions.csv")))[:1]:
            questions += [
                Question(f"{row['question']} in {title}", row["answer1"])
                for row in _table(asked, ("question", "answer1"))
            ]
    if not questions:
        raise ConfigError(f"{source} has no story with its questions", param="source")
    return Texts(passages, questions, words=100, overlap=20)


def _files(source: Path, pattern: str) -> list[Path]:
    found = sorted(source.glob(pattern)) if source.is_dir() else [source]
    if not found:
        raise ConfigError(f"{source} has no {pattern}", param="source")
    return found


def _table(file: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise ConfigError(f"{file} has no column {missing[0]!r}", param="source")
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{file} cannot be read: {error}", param="source") from error


def _decode(file: Path, kind: type[T]) -> T:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", param="source") from error
    return _decoded(data, kind, str(file))


def _decoded(data: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {error}", param="source") from error
