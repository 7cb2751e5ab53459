"""Documents inside messages: `<document>` elements and JSON search results become documents.

The text of a document is taken out and `[Doc label]` stands in its place, which names the block
that holds it; all else of the message stays byte for byte: attributes of the element, fields of
the result, words around them. Applications that know nothing of `documents` so gain from reuse.

What counts as a document is narrow on purpose (`DOCUMENT`, `RESULT_LISTS`, `TEXT_FIELDS`,
`IDENTIFYING_FIELDS`): text that is not clearly one is never moved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]  # CPython's own, in C

import msgspec

from cp_ray.core.annotation import label_of
from cp_ray.core.prompt import content_of
from cp_ray.router.api import ChatRequest, Document, Message
from cp_ray.router.history import last_user

DOCUMENT = re.compile(r"<document(?:\s[^<>]*)?>(.*?)</document>", re.DOTALL)
_CONTENT = re.compile(r"<document_content>(.*?)</document_content>", re.DOTALL)
RESULT_LISTS = frozenset(
    ["results", "documents", "hits", "items", "matches", "data", "web", "organic", "nodes"]
)
"""Keys on the way from the top to a list of results."""
TEXT_FIELDS = frozenset(["text", "content", "snippet", "page_content", "body", "passage", "chunk"])
"""A result has exactly one of these."""
IDENTIFYING_FIELDS = frozenset(
    ("id", "_id", "doc_id", "url", "link", "href", "path", "title", "name", "source", "metadata")
)
"""A result has at least one of these, or a score."""
_SCORES = frozenset(("score", "_score", "distance"))
_WRAPPERS = frozenset(["_source", "document", "payload", "node"])
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
LEAST_CHARS = 80
"""A shorter text is not worth a heading and a label."""


class Found(msgspec.Struct, frozen=True):
    """A document's text at [start, end) of a content. quoted: the span is a JSON string."""

    start: int
    end: int
    text: str
    quoted: bool


def find(role: str, content: str) -> list[Found]:
    """Documents in one message, in order and apart from each other."""
    if role not in ("user", "tool"):
        return []
    found = [] if role == "user" else _results(content)
    return found or list(_elements(content))


def lift(
    request: ChatRequest,
    stands: Callable[[Document], bool],
    *,
    most: int,
    longest: int,
    nameable: Callable[[Document], bool] = lambda _: True,
) -> ChatRequest:
    """The request with the documents of this turn's messages among its `documents`.

    stands: whether a document's block is part of the earlier turns as they will be sent; those
    are taken out of earlier tool messages, too. most: documents of a request. longest: bytes of
    one. nameable: whether no other block of the earlier turns has its label. What is beyond either
    limit, or has no label of its own, stays where it is.
    """
    last = last_user(request)
    named = {_label(document): document.text for document in request.documents}
    documents = list(request.documents)
    messages = []
    for position, message in enumerate(request.messages):
        if position < last and message.role == "user":
            messages.append(message)  # sent as first sent, or as it is
            continue
        taken = []
        for found in find(message.role, message.content):
            document = Document(text=found.text)
            label = _label(document)
            if named.get(label, found.text) != found.text or not nameable(document):
                continue
            if position < last:
                if stands(document):
                    taken.append(found)
            elif len(documents) < most and len(found.text.encode()) <= longest:
                name = f"messages.{position}.{found.start}"
                named[label] = found.text
                documents.append(Document(id=name, text=found.text))
                taken.append(found)
        messages.append(_without(message, taken))
    return request.model_copy(update={"messages": tuple(messages), "documents": tuple(documents)})


def _without(message: Message, taken: list[Found]) -> Message:
    if not taken:
        return message
    parts, end = [], 0
    for found in taken:
        name = f"[Doc {_label(Document(text=found.text))}]"
        parts += [message.content[end : found.start], json.dumps(name) if found.quoted else name]
        end = found.end
    parts.append(message.content[end:])
    return message.model_copy(update={"content": "".join(parts)})


def _label(document: Document) -> str:
    return label_of(content_of(document.title, document.text))


def _elements(content: str) -> Iterator[Found]:
    for element in DOCUMENT.finditer(content):
        if "<document>" in element[1] or "<document " in element[1]:
            continue  # one within another: whose text is whose cannot be told
        inner = _CONTENT.search(element[1])
        start = element.start(1) + (inner.start(1) if inner else 0)
        text = inner[1] if inner else element[1]
        if _worth(text):
            yield Found(start, start + len(text), text, quoted=False)


def _worth(text: str) -> bool:
    return len(text.strip()) >= LEAST_CHARS


class _Node(msgspec.Struct, frozen=True):
    start: int
    end: int
    value: dict[str, _Node] | list[_Node] | str | None


def _results(content: str) -> list[Found]:
    try:
        if not isinstance(json.loads(content), dict | list):
            return []
        root = _parse(content, 0)
    except (ValueError, RecursionError):
        return []
    return [found for items in _lists(root) for item in items for found in _result(item)]


def _lists(node: _Node) -> Iterator[list[_Node]]:
    if isinstance(node.value, list):
        if node.value and all(isinstance(item.value, dict) for item in node.value):
            yield node.value
    elif isinstance(node.value, dict):
        for key, child in node.value.items():
            if key in RESULT_LISTS:
                yield from _lists(child)


def _result(item: _Node) -> Iterator[Found]:
    fields = item.value
    if not isinstance(fields, dict):
        return
    inner = next((fields[key].value for key in fields if key in _WRAPPERS), None)
    holder = inner if isinstance(inner, dict) else fields
    texts = [holder[key] for key in holder if key in TEXT_FIELDS]
    if len(texts) != 1 or not (IDENTIFYING_FIELDS | _SCORES) & (fields.keys() | holder.keys()):
        return
    (node,) = texts
    if isinstance(node.value, str) and _worth(node.value) and not _NO_TEXT.search(node.value):
        yield Found(node.start, node.end, node.value, quoted=True)


_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"[^\s,\]}]+")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _parse(text: str, at: int) -> _Node:
    """Read a value of valid JSON and where it stands."""
    start = at = _skip(text, at)
    if text[at] == '"':
        value, end = scanstring(text, at + 1, True)
        return _Node(start, end, value)
    if text[at] not in "[{":
        scalar = _SCALAR.match(text, at)
        return _Node(start, scalar.end() if scalar else at + 1, None)
    close = "]" if text[at] == "[" else "}"
    fields: dict[str, _Node] = {}
    items: list[_Node] = []
    at = _skip(text, at + 1)
    while text[at] != close:
        if close == "}":
            key, at = scanstring(text, at + 1, True)
            at = _skip(text, at) + 1  # the colon
        node = _parse(text, at)
        if close == "}":
            fields[key] = node
        else:
            items.append(node)
        at = _skip(text, node.end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return _Node(start, at + 1, fields if close == "}" else items)
