"""Bad input: a clear error in OpenAI's shape that names the field and the fix; nothing is lost."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.shells.http_support import HTTP, Bench, running

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "q"}]
GOOD = {"model": "sim", "messages": ASK}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with running(Bench(max_body_bytes=200_000, max_document_bytes=20_000)) as it:
        yield it
        answer = HTTP.post(it.url + CHAT, json=GOOD)
        assert answer.status_code == 200, "the process lives on"
        assert it.planner.index.counters()["reserved"] == 0


def refused(response: httpx.Response, status: int, param: str | None, *says: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    for text in says:
        assert text in error["message"]


def part(kind: str) -> list[dict[str, Any]]:
    return [{"type": kind, kind: {"url": "data:,"}}]


@pytest.mark.parametrize(
    ("change", "status", "param", "says"),
    [
        ({"messages": None}, 400, "messages", "add it"),
        ({"messages": []}, 400, "messages", "send at least one user message"),
        ({"messages": "hello"}, 400, "messages", "list"),
        ({"messages": [{"role": "system", "content": "s"}]}, 400, "messages", "role user"),
        ({"messages": [{"content": "q"}]}, 400, "messages.0.role", "missing"),
        ({"messages": [{"role": "boss", "content": "q"}]}, 400, "messages.0.role", "user"),
        ({"messages": [{"role": "user", "content": 7}]}, 400, "messages.0.content", "string"),
        (
            {"messages": [{"role": "user", "content": part("image_url")}]},
            400,
            "messages.0.content",
            "image_url",
        ),
        ({"model": None}, 400, "model", "add it"),
        ({"model": "gpt-9"}, 404, "model", "send 'sim'"),
        ({"documents": "text"}, 400, "documents", "list"),
        ({"documents": [7]}, 400, "documents.0", "send a string"),
        ({"documents": ["a", None]}, 400, "documents.1", "send a string"),
        ({"documents": [["a"]]}, 400, "documents.0", "send a string"),
        ({"documents": [""]}, 400, "documents.0.text", "leave the document out"),
        ({"documents": [{"id": "a"}]}, 400, "documents.0.text", "missing"),
        ({"documents": [{"text": 5}]}, 400, "documents.0.text", "string"),
        ({"documents": [{"id": 7, "text": "a"}]}, 400, "documents.0.id", "string"),
        ({"documents": [{"titel": "x", "text": "a"}]}, 400, "documents.0.titel", "title"),
        ({"documents": [{"public": "yes", "text": "a"}]}, 400, "documents.0.public", "boolean"),
        (
            {"documents": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]},
            400,
            "documents.1.id",
            "its own id",
        ),
        ({"documents": [f"d{i}" for i in range(10_000)]}, 422, "documents", "max_documents"),
        ({"documents": ["x" * 20_001]}, 422, "documents.0.text", "max_document_bytes"),
        ({"conversation": 5}, 400, "conversation", "string"),
        ({"conversation": ""}, 400, "conversation", "at least 1"),
        ({"n": 2}, 400, "n", "n=1"),
        ({"logprobs": True}, 400, "logprobs", "leave it out"),
        ({"top_logprobs": 3}, 400, "top_logprobs", "leave it out"),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias", "leave it out"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format", "text"),
        ({"tool_choice": "required"}, 400, "tool_choice", "auto"),
        ({"tool_choice": {"type": "function"}}, 400, "tool_choice", "auto"),
        ({"functions": [{"name": "f"}]}, 400, "functions", "tools"),
        ({"modalities": ["text", "audio"]}, 400, "modalities", "text"),
        ({"reasoning_effort": "high"}, 400, "reasoning_effort", "leave it out"),
        ({"documnets": []}, 400, "documnets", "did you mean `documents`"),
        ({"guided_json": {}}, 400, "guided_json", "remove it"),
        ({"max_tokens": 0}, 400, "max_tokens", "greater"),
        ({"max_tokens": "many"}, 400, "max_tokens", "integer"),
        ({"max_completion_tokens": 99_999}, 422, "max_completion_tokens", "max_output_tokens"),
        ({"temperature": -1}, 400, "temperature", "greater"),
        ({"top_p": 0}, 400, "top_p", "greater"),
        ({"stop": [""]}, 400, "stop.0", "at least 1"),
        ({"stop": list("abcde")}, 400, "stop", "at most 4"),
        ({"stream": "yes"}, 400, "stream", "boolean"),
        ({"seed": 1 << 70}, 400, "seed", "less"),
        ({"top_k": 1 << 70}, 400, "top_k", "less"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_bad_field_is_named_with_its_fix(
    bench: Bench, change: dict[str, Any], status: int, param: str, says: str
) -> None:
    sent = len(bench.dispatcher.sent)
    refused(HTTP.post(bench.url + CHAT, json={**GOOD, **change}), status, param, says)
    assert len(bench.dispatcher.sent) == sent


@pytest.mark.parametrize(
    "field",
    [
        {"n": 1},
        {"logprobs": False},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"parallel_tool_calls": True, "logit_bias": {}, "stop": None, "seed": None},
        {"temperature": None, "top_p": None, "stream": None, "max_tokens": None},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}], "name": "x"}]},
        {"messages": [{"role": "developer", "content": "s"}, *ASK]},
    ],
    ids=json.dumps,
)
def test_openai_s_fields_that_change_nothing_are_accepted(
    bench: Bench, field: dict[str, Any]
) -> None:
    assert HTTP.post(bench.url + CHAT, json={**GOOD, **field}).status_code == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[1]", "JSON object"),
        (b'"text"', "JSON object"),
        (b'{"model": "\xff"}', "UTF-8"),
        (b'{"a":' * 60_000 + b"1" + b"}" * 60_000, "JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "JSON"),
    ],
    ids=["empty", "cut off", "a list", "a string", "no UTF-8", "nested", "a huge number"],
)
def test_a_body_that_is_no_json_object_is_refused(bench: Bench, body: bytes, says: str) -> None:
    if len(body) > bench.config.max_body_bytes:
        body = body[: bench.config.max_body_bytes - 1]
    refused(HTTP.post(bench.url + CHAT, content=body), 400, None, says)


@pytest.mark.parametrize(
    ("json_text", "says"),
    [(r"a\u0000b", "NUL"), (r"a\ud800b", "surrogate"), (r"\udfff", "surrogate")],
)
@pytest.mark.parametrize(
    ("template", "param"),
    [
        ('{"model":"sim","messages":[{"role":"user","content":"%s"}]}', "messages.0.content"),
        (
            '{"model":"sim","messages":[{"role":"user","content":"q"}],"documents":["a","%s"]}',
            "documents.1",
        ),
        (
            '{"model":"sim","messages":[{"role":"user","content":"q"}],'
            '"documents":[{"id":"%s","text":"t"}]}',
            "documents.0.id",
        ),
        (
            '{"model":"sim","messages":[{"role":"user","content":"q"}],"conversation":"%s"}',
            "conversation",
        ),
    ],
    ids=["message", "document", "id", "conversation"],
)
def test_text_that_is_no_text_is_refused(
    bench: Bench, template: str, param: str, json_text: str, says: str
) -> None:
    body = (template % json_text).encode()
    refused(HTTP.post(bench.url + CHAT, content=body), 400, param, says, "remove it")


def test_a_whole_surrogate_pair_is_text(bench: Bench) -> None:
    body = rb'{"model":"sim","messages":[{"role":"user","content":"\ud83d\ude00"}]}'
    assert HTTP.post(bench.url + CHAT, content=body).status_code == 200


def test_a_body_that_is_too_large_is_refused_declared_or_not(bench: Bench) -> None:
    large = b"x" * (bench.config.max_body_bytes + 1)
    refused(HTTP.post(bench.url + CHAT, content=large), 413, None, "max_body_bytes")
    pieces = (large[i : i + 50_000] for i in range(0, len(large), 50_000))
    refused(HTTP.post(bench.url + CHAT, content=pieces), 413, None, "max_body_bytes")


@pytest.mark.parametrize("field", ["documents", "messages"])
def test_a_prompt_longer_than_the_context_is_refused(bench: Bench, field: str) -> None:
    text = "word " * 3900
    change: dict[str, Any] = {"documents": [text, "other"]}
    if field == "messages":
        change = {"messages": [{"role": "user", "content": text}]}
    response = HTTP.post(bench.url + CHAT, json={**GOOD, **change, "max_tokens": 200})
    refused(response, 400, field, "context length is 4000", "fewer")
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_a_prompt_that_fits_only_without_annotation_keeps_its_order(bench: Bench) -> None:
    documents = [f"{i} " + "word " * 60 for i in range(12)]
    body = {**GOOD, "documents": documents, "max_tokens": 1}
    assert HTTP.post(bench.url + CHAT, json=body).status_code == 200
    used = len(bench.dispatcher.sent[-1].tokens)
    info = bench.engine.info
    bench.service._info = type(info)("tape", "sim", 4, 1 << 20, used + 2, simulated=True)
    try:
        shifted = {**body, "documents": documents[::-1]}
        assert HTTP.post(bench.url + CHAT, json=shifted).status_code == 200
        assert len(bench.dispatcher.sent[-1].tokens) == used
    finally:
        bench.service._info = info


def test_completions_refuse_what_they_cannot_do(bench: Bench) -> None:
    url = f"{bench.url}/v1/completions"
    refused(HTTP.post(url, json={"model": "sim"}), 400, "prompt", "add it")
    for prompt in (["a", "b"], [1, 2], 7):
        response = HTTP.post(url, json={"model": "sim", "prompt": prompt})
        assert response.status_code == 400 and response.json()["error"]["param"] == "prompt"
    for field, value in (("echo", True), ("best_of", 3), ("suffix", "x"), ("logprobs", 0)):
        body = {"model": "sim", "prompt": "p", field: value}
        refused(HTTP.post(url, json=body), 400, field, "leave it out")
    refused(HTTP.post(url, json={"model": "sim", "prompt": "p", "messages": []}), 400, "messages")


def test_a_bad_batch_names_the_request_in_it(bench: Bench) -> None:
    url = f"{bench.url}/v1/context/plan"
    bad = {"requests": [GOOD, {**GOOD, "documents": [5]}]}
    refused(HTTP.post(url, json=bad), 400, "requests.1.documents.0", "requests.1.documents.0")
    refused(HTTP.post(url, json={"requests": []}), 400, "requests", "at least one")
    refused(HTTP.post(url, json={"requests": [3]}), 400, "requests.0", "no object")


def test_unknown_routes_methods_and_headers_have_openai_s_shape(bench: Bench) -> None:
    refused(HTTP.get(f"{bench.url}/v1/nothing"), 404, None, "/v1/nothing")
    refused(HTTP.get(bench.url + CHAT), 405, None, "GET")
    response = HTTP.post(bench.url + CHAT, json=GOOD, headers={"x-cp-ray-reuse": "most"})
    refused(response, 400, "x-cp-ray-reuse", "plain, route or full")


def test_an_odd_request_id_is_not_echoed(bench: Bench) -> None:
    response = HTTP.post(bench.url + CHAT, json=GOOD, headers={"x-request-id": "x" * 1000})
    assert response.headers["x-request-id"] != "x" * 1000
