"""Case 19: whatever order an engine's chunks come in, a stream is one whole answer.

An engine may send text, chunks with nothing but usage, its end with text or without, and more
usage behind the end. The client sees the role, the text, one finish reason, the usage if it asked
for it, [DONE], and nothing else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from cp_ray.core.types import ReplicaId
from cp_ray.workers.engine import Chunk, EngineRequest
from tests.shells.http_support import HTTP, Bench, TapeEngine, running

ORDERS = [
    "".join(before) + end + after
    for count in range(4)
    for before in itertools.product("tu", repeat=count)
    for end in "eE"
    for after in ("", "u", "uu")
]
"""t: text. u: usage only. e: the end. E: the end with text."""


class Scripted(TapeEngine):
    """Sends its chunks in the order of `script`."""

    def __init__(self) -> None:
        super().__init__()
        self.script = ""

    async def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        tokens = 0
        for place, kind in enumerate(self.script):
            text = f"w{place} " if kind in ("t", "E") else ""
            tokens += bool(text)
            end = "stop" if kind in "eE" else None
            yield Chunk(text, tokens, len(request.tokens), 0, end)


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[Bench, Scripted]]:
    engine = Scripted()
    engines: dict[ReplicaId, Any] = {ReplicaId("r0"): engine}
    with running(Bench(engines=engines)) as bench:
        yield bench, engine


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_is_whole_in_every_order_of_chunks(
    scripted: tuple[Bench, Scripted], include_usage: bool
) -> None:
    bench, engine = scripted
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": "q"}],
        "stream": True,
        "stream_options": {"include_usage": include_usage},
    }
    for engine.script in ORDERS:
        lines = HTTP.post(f"{bench.url}/v1/chat/completions", json=body).text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], engine.script
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        seen = [_kind(chunk) for chunk in chunks]
        texts = sum(kind in ("t", "E") for kind in engine.script)
        assert seen == ["role", *["text"] * texts, "end", *["usage"] * include_usage], engine.script
        if include_usage:
            assert chunks[-1]["usage"]["completion_tokens"] == texts, engine.script


def test_an_answer_in_one_piece_has_all_of_its_text_in_every_order(
    scripted: tuple[Bench, Scripted],
) -> None:
    bench, engine = scripted
    body = {"model": "sim", "messages": [{"role": "user", "content": "q"}]}
    for engine.script in ORDERS:
        answer = HTTP.post(f"{bench.url}/v1/chat/completions", json=body).json()
        choice = answer["choices"][0]
        wanted = "".join(f"w{n} " for n, kind in enumerate(engine.script) if kind in ("t", "E"))
        assert (choice["message"]["content"], choice["finish_reason"]) == (wanted, "stop")


def _kind(chunk: dict[str, Any]) -> str:
    if not chunk["choices"]:
        return "usage"
    (choice,) = chunk["choices"]
    if choice["finish_reason"] is not None:
        return "end"
    return "role" if "role" in choice["delta"] else "text"
