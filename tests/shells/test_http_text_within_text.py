"""JSON within JSON: what a client's tools say is text to us, and no kind of it is our fault."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.shells.http_support import HTTP, Bench, running, wait_for

CHAT = "/v1/chat/completions"
LONG = "This says enough about its thing to be worth lifting out of a message. " * 2


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with running(Bench(lift_documents=True)) as it:
        yield it
        assert it.planner.index.counters()["reserved"] == 0


def asked(arguments: str, content: str, **more: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": content},
    ]
    return {"model": "sim", "messages": messages, **more}


HALF = '[{"url": "u", "text": "\\ud83d ' + LONG + '"}]'
"""What is left of an emoji that somebody cut to a length."""


@pytest.mark.parametrize(
    ("arguments", "content"),
    [
        ("{}", HALF),
        ('{"q": "\\ud83d"}', "42"),
        ("[" * 3000, "42"),
        ('{"q": ' + "[" * 1500 + "]" * 1500 + "}", "42"),
        ('{"q": 18446744073709551616}', "42"),
    ],
    ids=["half an emoji", "half an emoji to a tool", "no JSON", "deep JSON", "a large number"],
)
def test_whatever_a_tool_was_told_or_says_is_answered(
    bench: Bench, arguments: str, content: str
) -> None:
    response = HTTP.post(bench.url + CHAT, json=asked(arguments, content))
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("levels", [100, 250, 960, 975, 990])
def test_a_body_of_any_depth_is_answered_or_refused(bench: Bench, levels: int) -> None:
    limits = '{"x": ' * levels + "1" + "}" * levels
    tool = f'{{"type": "function", "function": {{"name": "f", "parameters": {limits}}}}}'
    body = json.dumps(asked("{}", "42"))[:-1] + f', "tools": [{tool}]}}'
    response = HTTP.post(bench.url + CHAT, content=body)
    assert response.status_code == (200 if levels == 100 else 400), response.text
    assert levels == 100 or "nested too deep" in response.json()["error"]["message"]


def test_a_tool_may_have_limits_that_no_machine_word_holds(bench: Bench) -> None:
    limits = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 10**30}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": limits}}
    response = HTTP.post(bench.url + CHAT, json=asked("{}", "42", tools=[tool]))
    assert response.status_code == 200, response.text


def test_a_client_that_leaves_within_its_body_is_no_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps(asked("{}", LONG)).encode()
    address = urlsplit(bench.url)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    left: list[int] = []
    with caplog.at_level(logging.INFO, "ray.serve"):
        with socket.create_connection((address.hostname, address.port)) as gone:
            gone.sendall(head.encode() + body[:50])
        left.append(HTTP.post(bench.url + CHAT, json=asked("{}", LONG)).status_code)
        wait_for(lambda: left == [200])
    assert "request failed" not in caplog.text
