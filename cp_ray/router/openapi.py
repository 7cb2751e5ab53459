"""GET /openapi.json: what this application takes and gives, as OpenAPI 3.1.

Bodies are read by hand (`limits.py`), so the schemas of the fields come from the very models that
check them, and what those models' own code says beyond that is added here. It is as strict as the
checks are: `make schemathesis` sends what it allows, and what it forbids.
"""

from __future__ import annotations

from typing import Any

from cp_ray.config import AppConfig
from cp_ray.router.api import HARMLESS, REFUSED, ChatRequest, CompletionRequest, Generation, Score
from cp_ray.router.context_plan import MAX_BATCH

Json = dict[str, Any]
_TEXT: Json = {"type": "string"}
_NUMBER: Json = {"type": "number"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_PART: Json = {
    "anyOf": [
        {
            "type": "object",
            "required": ["type", kind],
            "properties": {"type": {"const": kind}, kind: _TEXT},
        }
        for kind in ("text", "refusal")
    ]
}


def openapi(config: AppConfig, *, fleet: bool) -> Json:
    """The document. fleet: whether the routes below /fleet are there."""
    paths = _generation_paths() | _own_paths() | (_fleet_paths() if fleet else {})
    bearer = {"type": "http", "scheme": "bearer", "description": "a tenant's key, if there are any"}
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "cp_ray",
            "version": "1",
            "description": "OpenAI's chat and completion requests with context blocks "
            "(`documents`). No string of a body may hold U+0000.",
        },
        "paths": paths,
        "components": {"schemas": _schemas(config)},
    }
    if config.api_keys:
        document["components"]["securitySchemes"] = {"key": bearer}
        document["security"] = [{"key": []}]
    return document


def _generation_paths() -> Json:
    reuse = {
        "name": "x-cp-ray-reuse",
        "in": "header",
        "schema": {"enum": ["plain", "route", "full"]},
        "description": "a lower level than the configured one",
    }
    explain = {
        "name": "x-cp-ray-explain",
        "in": "header",
        "schema": _TEXT,
        "description": "1: explain",
    }
    trace = {
        "name": "traceparent",
        "in": "header",
        "schema": _TEXT,
        "description": "W3C Trace Context, where traces are sent (otlp_endpoint); else unused",
    }
    stream = {"text/event-stream": {"schema": _object(data=_TEXT)}}
    return {
        "/v1/chat/completions": {
            "post": _operation(
                "Answer a chat",
                {"application/json": _ref("ChatAnswer")} | stream,
                body="ChatRequest",
                parameters=[reuse, explain, trace],
            )
        },
        "/v1/completions": {
            "post": _operation(
                "Continue a text",
                {"application/json": _ref("CompletionAnswer")} | stream,
                body="CompletionRequest",
                parameters=[reuse, explain, trace],
            )
        },
        "/v1/context/plan": {
            "post": _operation(
                "Order and annotate without generating",
                {"application/json": {"schema": {"type": "object"}}},
                body="PlanRequest",
                parameters=[reuse],
            )
        },
    }


def _own_paths() -> Json:
    anything = {"application/json": {"schema": {"type": "object"}}}
    return {
        "/v1/score": {"post": _operation("Score an answer", anything, body="Score")},
        "/v1/models": {
            "get": _operation("The model", {"application/json": _ref("Models")}),
        },
        "/healthz": {"get": _operation("This router runs", anything, open_to_all=True)},
        "/readyz": {"get": _operation("An engine answers", anything, open_to_all=True)},
        "/openapi.json": {"get": _operation("This document", anything, open_to_all=True)},
    }


def _fleet_paths() -> Json:
    anything = {"application/json": {"schema": {"type": "object"}}}
    since = {"name": "since", "in": "query", "schema": _NUMBER, "description": "s since 1970"}
    identity = {"name": "request_id", "in": "path", "required": True, "schema": _TEXT}
    page = {"text/html": {"schema": _TEXT}}
    return {
        "/fleet": {"get": _operation("The page", page, open_to_all=True)},
        "/fleet/data": {"get": _operation("Its data", anything, parameters=[since])},
        "/fleet/requests/{request_id}": {
            "get": _operation("One request explained", anything, parameters=[identity])
        },
    }


def _operation(
    summary: str,
    content: Json,
    *,
    body: str | None = None,
    parameters: list[Json] | None = None,
    open_to_all: bool = False,
) -> Json:
    error = {"description": "an error", "content": {"application/json": _ref("Error")}}
    operation: Json = {
        "summary": summary,
        "responses": {"200": {"description": "as asked", "content": content}, "default": error},
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": _ref(body)}}
    if parameters:
        operation["parameters"] = parameters
    if open_to_all:
        operation["security"] = []
    return operation


def _ref(name: str) -> Json:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}


def _schemas(config: AppConfig) -> Json:
    schemas: Json = {}
    for kind in (ChatRequest, CompletionRequest):
        schemas |= _request(kind, config)
    score = Score.model_json_schema()
    batch = {
        "type": "object",
        "required": ["requests"],
        "additionalProperties": False,
        "properties": {
            "requests": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_BATCH,
                "items": _ref("ChatRequest")["schema"],
            }
        },
    }
    plan = {"anyOf": [_ref("ChatRequest")["schema"], batch]}
    return schemas | {"Score": score, "PlanRequest": plan} | _answers()


def _request(kind: type[Generation], config: AppConfig) -> Json:
    """A request's schema, and those that it names."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    named: Json = schema.pop("$defs")
    fields: Json = schema["properties"]
    for name, known in REFUSED.items():
        fields.setdefault(name, known.schema)
    fields |= {name: {} for name in sorted(HARMLESS)}
    fields["model"] = {"const": config.public_model_name}
    fields["documents"] |= {"maxItems": config.max_documents}
    text = {"type": "string", "minLength": 1}
    fields["stop"] = {"anyOf": [text, {"type": "array", "items": text, "maxItems": 4}]}
    for name in ("max_tokens", "max_completion_tokens"):
        if name in fields:
            fields[name] = {"type": "integer", "minimum": 1, "maximum": config.max_output_tokens}
    if "prompt" in fields:
        fields["prompt"] = {
            "anyOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": 1}]
        }
    if "messages" in fields:
        question = {"properties": {"role": {"const": "user"}}, "required": ["role"]}
        fields["messages"] |= {"minItems": 1, "contains": question}
        parts = {"type": "array", "items": _PART}
        message: Json = named["Message"]["properties"]
        message["content"] = {"anyOf": [_TEXT, parts, {"type": "null"}]}
    document: Json = named.pop("Document")
    document["properties"]["text"] = text
    named["Document"] = {"anyOf": [text, document]}
    required = schema["required"]
    for name, field in fields.items():
        if name not in required:
            fields[name] = _or_null(field)
    return named | {kind.__name__: schema | {"additionalProperties": False}}


def _or_null(schema: Json) -> Json:
    """Null counts as absent."""
    if not schema:
        return schema
    if "enum" in schema:
        return schema | {"enum": [*schema["enum"], None]}
    return {"anyOf": [schema, {"type": "null"}]}


def _answers() -> Json:
    usage = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
    frame = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "usage": usage}
    message = _object(role={"const": "assistant"}, content=_TEXT)
    chat_choice = _object(index=_COUNT, finish_reason=_TEXT, message=message)
    choice = _object(index=_COUNT, finish_reason=_TEXT, text=_TEXT)
    nullable = {"type": ["string", "null"]}
    error = _object(message=_TEXT, type=_TEXT, param=nullable, code=nullable)
    model = _object(id=_TEXT, object={"const": "model"}, owned_by=_TEXT)
    return {
        "ChatAnswer": _object(
            **frame, object={"const": "chat.completion"}, choices=_one(chat_choice)
        ),
        "CompletionAnswer": _object(
            **frame, object={"const": "text_completion"}, choices=_one(choice)
        ),
        "Models": _object(object={"const": "list"}, data=_one(model)),
        "Error": _object(error=error),
    }


def _object(**properties: Any) -> Json:
    """All of them are always there."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _one(item: Json) -> Json:
    return {"type": "array", "items": item, "minItems": 1, "maxItems": 1}
