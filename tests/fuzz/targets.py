"""What is fuzzed. A target takes bytes; what it raises is a fault, for all that may be wrong with
an input has a name: WireError, ConfigError, or a status below 500.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from cp_ray.config import parse_settings
from cp_ray.core.index import ContextIndex
from cp_ray.core.kept import Batch, Kept, pack, recall
from cp_ray.core.packed import packed
from cp_ray.core.types import (
    Arrived,
    BlockId,
    Dump,
    DumpRequest,
    Eviction,
    EvictionReport,
    Feedback,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    ReplicaMessage,
    RequestId,
    Settled,
)
from cp_ray.errors import ConfigError, WireError
from cp_ray.replay.importing import ImportOptions, import_trace
from cp_ray.replay.trace import read_trace
from cp_ray.router.auth import Authenticator
from cp_ray.router.endpoints import build_api
from cp_ray.serve_config import check_serve_config
from cp_ray.store import wire
from cp_ray.workers.engine import EngineRequest, Sampling
from tests.fuzz.mutate import mutated, odd_json
from tests.shells.http_support import Bench

R = ReplicaId("r")
CORPUS = Path(__file__).parent / "corpus"
"""One folder a target: inputs that once failed, and some that should be tried every time."""


class Target(msgspec.Struct, frozen=True):
    """run: raises only when it found a fault. make: an input from a random source.

    share: of all inputs, in parts.
    """

    name: str
    run: Callable[[bytes], None]
    make: Callable[[random.Random], bytes]
    share: int

    def corpus_folder(self) -> Path:
        """Where its regression inputs are."""
        return CORPUS / self.name

    def corpus(self) -> list[Path]:
        """Its regression inputs."""
        return sorted(self.corpus_folder().glob("*"))


def _from_seeds(*seeds: bytes) -> Callable[[random.Random], bytes]:
    return lambda rng: mutated(rng, seeds)


def _plan(name: str) -> PlanRequest:
    context = (BlockId("x"), BlockId("yy"))
    return PlanRequest(RequestId(name), HeadId("h"), 5, context, (10, 20), 3)


WIRE_TYPES: tuple[Any, ...] = (
    ReplicaMessage,
    DumpRequest,
    list[Feedback],
    list[PlanRequest],
    Batch,
    EngineRequest,
)
_REPORT = EvictionReport(R, 0, 0, (Eviction(RequestId("a"), 20), Eviction(RequestId("b"), 0)))
_DUMP = Dump(R, 1, 2, {RequestId("a"): 38})
_KEPT = Kept(RequestId("k"), R, HeadId("h"), 5, (BlockId("x"), BlockId("z")), (10, 7), 30)
_MESSAGES = (
    wire.encode(_REPORT),
    wire.encode(_DUMP),
    wire.encode(DumpRequest(R, rebuild=True)),
    wire.encode([Settled(RequestId("a"), 3, ok=True), Arrived(RequestId("a"))]),
    wire.encode([_plan("a")]),
    wire.encode(pack([_KEPT])),
    wire.encode(EngineRequest(RequestId("e"), packed([1, 2, 3]), Sampling(), "salt")),
)


def wire_decoder(data: bytes) -> None:
    """Every type from any bytes: a value that encodes again, or WireError."""
    for type_ in WIRE_TYPES:
        try:
            value = wire.decode(data, type_)
        except WireError:
            continue
        assert wire.decode(wire.encode(value), type_) == value


def index_messages(data: bytes) -> None:
    """A report, a dump or a batch of records that can be read leaves the index sound."""
    index = ContextIndex()
    index.set_replicas([ReplicaInfo(R, 1, 1000)])
    index.plan([_plan("a"), _plan("b")], 0.0)
    index.hear(Settled(RequestId("a"), 0, ok=True), 0.0)
    with suppress(WireError):
        message: ReplicaMessage = wire.decode(data, ReplicaMessage)
        index.apply(message)
    index.check()
    with suppress(WireError):
        recall(index, wire.decode(data, Batch))
    index.check()


_GOOD = {
    "model": "sim",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "what?"}]},
    ],
    "documents": ["one text", {"id": "kb/7", "title": "T", "text": "two texts", "public": True}],
    "conversation": "c-1",
    "stream": False,
    "max_tokens": 3,
    "temperature": 0.5,
    "stop": ["three"],
}
_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/context/plan")


def http_bodies(data: bytes) -> None:
    """Any body on any route: an answer or an error of the client's, in OpenAI's shape."""
    api, runner = _api()
    runner.run(_post_everywhere(api, data))


async def _post_everywhere(api: Any, data: bytes) -> None:
    for path in _PATHS:
        status, body = await _post(api, path, data)
        assert status < 500, (path, status, body[:500])
        if status >= 400:
            assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


@cache
def _api() -> tuple[Any, asyncio.Runner]:
    return build_api(Bench(max_body_bytes=100_000).service), asyncio.Runner()


async def _post(api: Any, path: str, body: bytes) -> tuple[int, bytes]:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    never = asyncio.Event()
    status, parts = 0, []

    async def receive() -> Any:
        if not sent:
            await never.wait()
        return sent.pop()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await api(scope, receive, send)
    return status, b"".join(parts)


def _make_body(rng: random.Random) -> bytes:
    good: Any = rng.choice(
        (_GOOD, {**_GOOD, "stream": True}, {"model": "sim", "prompt": "p"}, {"requests": [_GOOD]})
    )
    body = odd_json(rng, good)
    return mutated(rng, [body]) if rng.random() < 0.3 else body


def settings(data: bytes) -> None:
    """`key=value` words as typed: a configuration whose keys work, or ConfigError."""
    words = data.decode("utf-8", "replace").split("\n")
    try:
        config = parse_settings(words)
        Authenticator(config)
    except ConfigError:
        return
    assert type(config).model_validate_json(config.to_json()) == config


def serve_file(data: bytes) -> None:
    """A Serve config file: accepted, or ConfigError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "serve.yaml"
        file.write_bytes(data)
        try:
            check_serve_config(file)
        except ConfigError:
            return


def traces(data: bytes) -> None:
    """Trace files in every format that is imported: read, or ConfigError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.jsonl"
        file.write_bytes(data)
        for kind in ("generic", "mooncake", "cp_ray"):
            output = Path(folder) / kind
            try:
                import_trace(ImportOptions(source=file, kind=kind, output=output))
                read_trace(output)
            except ConfigError:
                continue


_SETTINGS = (
    b'replicas=2\napi_keys={"a": "k"}\nshare_public=a',
    b"engine=simulated\nmodel=m\nalpha=0.001\nredis_url=rediss://u:p@h:1/0",
    b"window_ms=5\nmax_model_len=64\nengine_kwargs={}\ntenant_max_calls=3",
)
_YAML = (
    b"applications:\n- name: a\n  route_prefix: /\n  import_path: cp_ray.app\n  args:\n"
    b"    engine: simulated\n    replicas: 2\n",
    b"http_options:\n  host: 127.0.0.1\n  port: 8000\napplications: []\n",
)
_TRACES = (
    b'{"question": "q", "documents": ["a", {"title": "t", "text": "b"}]}\n',
    b'{"timestamp": 1, "input_length": 700, "output_length": 3, "hash_ids": [1, 2]}\n',
    b'{"request_id": 1, "context": [1, 2], "session": "s", "question_tokens": 3}\n',
)
TARGETS = (
    Target("wire", wire_decoder, _from_seeds(*_MESSAGES), 140),
    Target("index", index_messages, _from_seeds(*_MESSAGES[:2], _MESSAGES[5]), 44),
    Target("http", http_bodies, _make_body, 8),
    Target("settings", settings, _from_seeds(*_SETTINGS), 12),
    Target("serve_file", serve_file, _from_seeds(*_YAML), 1),
    Target("traces", traces, _from_seeds(*_TRACES), 1),
)
