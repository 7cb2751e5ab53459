"""Prompts of a question set with some switches of cp_ray on: plain messages for any endpoint.

Rendered here by what the router itself uses, so an endpoint that knows nothing of cp_ray can be
asked. One index plans all questions in order, as if one replica with a boundless cache served them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import ReplicaId, ReplicaInfo, RequestId
from cp_ray.errors import ConfigError
from cp_ray.router.api import ChatRequest
from cp_ray.router.assembly import Assembler, Limits
from cp_ray.router.auth import DEFAULT, Tenant
from cp_ray.router.conversation import Turn
from cp_ray.router.tokenizer import WordTokenizer

T = TypeVar("T")
SYSTEM = "Answer the question from the documents. Be brief."


class Switches(msgspec.Struct, frozen=True):
    """order: blocks of first turns are reordered. annotate: and the ranking is said.

    dedup: repeated blocks become references. partial: repeated parts become pointers.
    """

    order: bool = False
    annotate: bool = False
    dedup: bool = False
    partial: bool = False


ARMS = {
    "off": Switches(),
    "repeat": Switches(),
    "order": Switches(order=True),
    "order+annotation": Switches(order=True, annotate=True),
    "dedup": Switches(dedup=True),
    "dedup+partial": Switches(dedup=True, partial=True),
    "all": Switches(order=True, annotate=True, dedup=True, partial=True),
}
"""`repeat` asks what `off` asks once more: how much an endpoint differs from itself."""


class Question(msgspec.Struct, frozen=True):
    """One line of a question set. documents: best first. answers: the right ones."""

    question: str
    documents: list[str]
    answers: list[str] = []
    conversation: str = ""


class Asked(msgspec.Struct, frozen=True):
    """What is sent. changed: whether it differs from what is sent with all switches off."""

    messages: list[dict[str, str]]
    changed: bool


def read_questions(source: Path, most: int | None) -> list[Question]:
    """A JSON Lines file of questions, or a folder with blocks.jsonl.gz and requests.jsonl.gz.

    Raises ConfigError with file and line of the first fault.
    """
    if source.is_dir():
        found = _from_folder(source)
    else:
        found = (_decoded(source, n, line, Question) for n, line in _lines(source))
    questions = [question for question, _ in zip(found, range(most or 1 << 60), strict=False)]
    if not questions:
        raise ConfigError(f"{source}: holds no question", param="questions")
    return questions


def prompts(questions: Sequence[Question], switches: Switches, model: str) -> list[Asked]:
    """Messages of every question, in order. Earlier turns have the first right answer."""
    off = _rendered(questions, Switches(), model)
    on = off if switches == Switches() else _rendered(questions, switches, model)
    return [Asked(one, one != plain) for one, plain in zip(on, off, strict=True)]


def _rendered(
    questions: Sequence[Question], switches: Switches, model: str
) -> list[list[dict[str, str]]]:
    limits = Limits(partial_overlap_tokens=24 if switches.partial else 0)
    assembler = Assembler(WordTokenizer(), model, limits)
    index = ContextIndex()
    index.set_replicas([ReplicaInfo(ReplicaId("one"), 16, 1 << 62)])
    histories: dict[str, list[dict[str, str]]] = {}
    recorded: dict[str, tuple[Turn, ...]] = {}
    sent = []
    for number, question in enumerate(questions):
        name = question.conversation or f"question {number}"
        history = histories.setdefault(name, [{"role": "system", "content": SYSTEM}])
        history.append({"role": "user", "content": question.question})
        turns = recorded.get(name, ())
        request = ChatRequest.model_validate(
            {"model": model, "messages": history, "documents": question.documents}
            | {"conversation": name}
        )
        wanted = switches.dedup if turns else switches.order
        prepared = assembler.prepare(
            request,
            Tenant(DEFAULT),
            RequestId(str(number)),
            reuse="full" if wanted else "route",
            turns=turns,
        )
        order = prepared.plan.context
        if prepared.plan.movable:
            (step,) = index.plan([prepared.plan], float(number))
            order = step.context
        finished = assembler.finish(prepared, order)
        if not switches.annotate and finished.annotation:
            user = tuple(text for text in finished.user if text != finished.annotation)
            finished = msgspec.structs.replace(finished, user=user)
        shown = [dict(message) for message in history]
        users = [place for place, message in enumerate(shown) if message["role"] == "user"]
        for place, turn in zip(users, turns, strict=False):
            shown[place]["content"] = "".join(turn.pieces)
        shown[users[-1]]["content"] = "".join(finished.user)
        sent.append(shown)
        if prepared.kept is not None:
            turn = finished.turn(RequestId(str(number)), prepared.kept)
            recorded[name] = (*turns, turn)
        answer = question.answers[0] if question.answers else "(no answer)"
        history.append({"role": "assistant", "content": answer})
    return sent


class _BlockLine(msgspec.Struct):
    block_id: int | str
    text: str


class _RequestLine(msgspec.Struct):
    question: str
    context: list[int | str]
    answers: list[str] = []
    session: str = ""


def _from_folder(folder: Path) -> Iterator[Question]:
    blocks, requests = folder / "blocks.jsonl.gz", folder / "requests.jsonl.gz"
    texts = {}
    for number, line in _lines(blocks):
        block = _decoded(blocks, number, line, _BlockLine)
        texts[block.block_id] = block.text
    for number, line in _lines(requests):
        request = _decoded(requests, number, line, _RequestLine)
        missing = [block for block in request.context if block not in texts]
        if missing:
            raise ConfigError(f"{requests}, line {number}: block {missing[0]} is not in {blocks}")
        documents = [texts[block] for block in request.context]
        yield Question(request.question, documents, request.answers, request.session)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error})", param="questions") from error


def _decoded(path: Path, number: int, line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}, line {number}: {error}", param="questions") from error
