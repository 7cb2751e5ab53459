"""From the bytes of a body to a valid request; every fault names the field and the fix."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from cp_ray.config import AppConfig
from cp_ray.errors import InvalidRequest
from cp_ray.router.api import HARMLESS, REFUSED, ChatRequest, Document, Generation, Score

R = TypeVar("R", bound=Generation)
Key = str | int
MOST_OF_KEY = 64
"""Characters of a key in a fault."""
MOST_NESTED = 200
"""Levels of a body. Python's own limit counts from wherever it stands: what one place still reads
another could not write."""


def too_large(limit: int) -> InvalidRequest:
    """The 413 of a body over `limit` bytes."""
    return InvalidRequest(
        f"the body is larger than {limit} bytes: send fewer or shorter documents, "
        "or raise max_body_bytes",
        code="body_too_large",
        status=413,
    )


def read_json(body: bytes | str) -> dict[str, Any]:
    """Decode a JSON object whose every string can be encoded; raises InvalidRequest."""
    try:
        value = json.loads(body)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise InvalidRequest(
            f"the body is no JSON ({error}): send a JSON object in UTF-8", code="invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body is no JSON object: send {...}", code="invalid_json")
    for where, text in _strings(value):
        if "\0" in text:
            path = _shown(where)
            raise InvalidRequest(f"{path}: holds a NUL character (\\u0000): remove it", param=path)
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            path = _shown(where)
            raise InvalidRequest(
                f"{path}: holds a lone surrogate (\\ud800-\\udfff), which is no text: "
                "remove it or send the whole pair",
                param=path,
            )
    return value


def parse(kind: type[R], value: dict[str, Any], config: AppConfig) -> R:
    """Check fields, types, ranges and limits; raises InvalidRequest for the first fault."""
    _check_fields(kind, value)
    _check_count(value.get("documents"), config)
    try:
        request = kind.model_validate(
            {key: item for key, item in value.items() if item is not None}
        )
    except ValidationError as error:
        raise _readable(error) from None
    if request.model != config.public_model_name:
        raise InvalidRequest(
            f"model: {request.model!r} is not served here: send {config.public_model_name!r}",
            param="model",
            code="model_not_found",
            status=404,
        )
    if isinstance(request, ChatRequest):
        _check_messages(request)
    _check_documents(request.documents, config)
    for field in ("max_completion_tokens", "max_tokens"):
        if (value.get(field) or 0) > config.max_output_tokens:
            raise InvalidRequest(
                f"{field}: {value[field]} is more than the {config.max_output_tokens} "
                "that are allowed: ask for fewer, or raise max_output_tokens",
                param=field,
                status=422,
            )
    return request


def parse_score(value: dict[str, Any]) -> Score:
    """Check a score; raises InvalidRequest for the first fault."""
    try:
        return Score.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in fault["loc"])
        raise InvalidRequest(
            f"{path}: {fault['msg'][:1].lower()}{fault['msg'][1:]}: "
            'send {"id": "chatcmpl-...", "score": 0 to 1}',
            param=path,
        ) from None


def _check_fields(kind: type[Generation], value: dict[str, Any]) -> None:
    for name, item in value.items():
        if name in REFUSED:
            known = REFUSED[name]
            if item is not None and not known.allows(item):
                raise InvalidRequest(
                    f"{name}: {known.fix}", param=name, code="unsupported_parameter"
                )
        elif name not in kind.model_fields and name not in HARMLESS:
            near = difflib.get_close_matches(name, [*kind.model_fields, *REFUSED], n=1)
            hint = f"did you mean `{near[0]}`?" if near else "remove it"
            raise InvalidRequest(
                f"{name}: no such field: {hint}", param=name, code="unknown_parameter"
            )


def _check_count(documents: Any, config: AppConfig) -> None:
    if isinstance(documents, list) and len(documents) > config.max_documents:
        raise InvalidRequest(
            f"documents: {len(documents)} are more than the {config.max_documents} that are "
            "allowed: send the best ones only, or raise max_documents",
            param="documents",
            code="too_many_documents",
            status=422,
        )


def _check_messages(request: ChatRequest) -> None:
    if not request.messages:
        raise InvalidRequest("messages: is empty: send at least one user message", param="messages")
    if not any(message.role == "user" for message in request.messages):
        raise InvalidRequest(
            "messages: no message has the role user: send the question as one", param="messages"
        )


def _check_documents(documents: Sequence[Document], config: AppConfig) -> None:
    seen: dict[str, Document] = {}
    for position, document in enumerate(documents):
        field = f"documents.{position}"
        if not document.text:
            raise InvalidRequest(
                f"{field}.text: is empty: leave the document out", param=f"{field}.text"
            )
        if len(document.text.encode()) > config.max_document_bytes:
            raise InvalidRequest(
                f"{field}.text: is longer than {config.max_document_bytes} bytes: "
                "split it, or raise max_document_bytes",
                param=f"{field}.text",
                code="document_too_large",
                status=422,
            )
        if document.id is None:
            continue
        first = seen.setdefault(document.id, document)
        if (first.text, first.title) != (document.text, document.title):
            raise InvalidRequest(
                f"{field}.id: {document.id!r} names two different texts in this request: "
                "give each text its own id, or leave the id out",
                param=f"{field}.id",
                code="ambiguous_document_id",
            )


def _readable(error: ValidationError) -> InvalidRequest:
    fault = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in fault["loc"])
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "missing":
        text = "is missing: add it"
    elif kind == "extra_forbidden":
        text = "no such field: remove it (known: id, title, text, public)"
    elif kind == "value_error":
        text = str(context["error"])
    else:
        text = fault["msg"][:1].lower() + fault["msg"][1:].replace("valid tuple", "list")
    return InvalidRequest(f"{path}: {text}", param=path)


def _too_deep() -> InvalidRequest:
    return InvalidRequest(
        f"the body is no JSON that can be read: it is nested too deep, send at most {MOST_NESTED} "
        "levels",
        code="invalid_json",
    )


def _strings(value: dict[str, Any]) -> Iterator[tuple[list[Key], str]]:
    """Every string of a JSON value, keys included, and where; raises InvalidRequest.

    Where: good until the next one; the object itself for a key. One iterator a level and no path
    a string: a body of 26 KB with one long key would take 40 MB, and its square at eight megabytes.
    """
    where: list[Key] = [""]
    levels = [_members(value)]
    while levels:
        key, child = next(levels[-1], (None, None))
        if key is None:
            levels.pop()
            where.pop()
            continue
        where[-1] = key
        if isinstance(key, str):
            yield where[:-1], key
        if isinstance(child, str):
            yield where, child
        elif isinstance(child, dict | list):
            if len(levels) == MOST_NESTED:
                raise _too_deep()
            levels.append(_members(child))
            where.append("")


def _members(value: dict[str, Any] | list[Any]) -> Iterator[tuple[Key, Any]]:
    return iter(value.items()) if isinstance(value, dict) else enumerate(value)


def _shown(where: list[Key]) -> str:
    """As a fault names it; long keys are cut."""
    return ".".join(str(key)[:MOST_OF_KEY] for key in where) or "body"
