"""A router over real HTTP on loopback, with the real index in-process and a small local engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx
import uvicorn

from cp_ray.config import AppConfig
from cp_ray.core.index import ContextIndex
from cp_ray.core.types import Feedback, PlanRequest, ReplicaId, ReplicaInfo, Step
from cp_ray.errors import CpRayError
from cp_ray.router.endpoints import build_api
from cp_ray.router.ports import RecordStore
from cp_ray.router.service import Service
from cp_ray.router.tokenizer import PromptTokenizer, WordTokenizer
from cp_ray.store import wire
from cp_ray.workers.engine import Chunk, Delivery, EngineInfo, EngineRequest
from cp_ray.workers.replica import deliveries

PAGE = 4
HTTP = httpx.Client(timeout=20)
"""One for all tests: making a client costs more than a request."""


class TapeEngine:
    """Answers "one two three" and remembers every page of every prompt for ever.

    fault: raised instead of the token at its index. delay_s: before each token.
    """

    def __init__(self, max_model_len: int = 4000) -> None:
        self.info = EngineInfo("tape", "sim", PAGE, 1 << 20, max_model_len, simulated=True)
        self.fault: tuple[int, Exception] | None = None
        self.delay_s = 0.0
        self.aborted = 0
        self._pages: set[tuple[str | None, tuple[int, ...]]] = set()

    async def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        prompt = tuple(request.tokens)
        cached = 0
        salt = request.cache_salt
        while cached + PAGE < len(prompt) and (salt, prompt[: cached + PAGE]) in self._pages:
            cached += PAGE
        self._pages |= {(salt, prompt[:end]) for end in range(PAGE, len(prompt) + 1, PAGE)}
        words = ["one ", "two ", "three"][: request.sampling.max_tokens]
        finished = False
        try:
            for index, word in enumerate(words):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.fault is not None and self.fault[0] == index:
                    raise self.fault[1]
                last = index == len(words) - 1
                yield Chunk(word, index + 1, len(prompt), cached, "stop" if last else None)
            finished = True
        finally:
            self.aborted += not finished


class LocalDispatcher:
    """Calls engines in this process, with what the wire makes of it; `sent` is what they got."""

    def __init__(self, engines: dict[ReplicaId, Any]) -> None:
        self.engines = engines
        self.sent: list[EngineRequest] = []
        self.steps: list[Step | None] = []
        self.divert: ReplicaId | None = None

    async def stream(
        self, step: Step | None, request: EngineRequest, issued: Callable[[], None] | None = None
    ) -> AsyncIterator[Delivery]:
        if issued is not None:
            issued()
        request = wire.decode(wire.encode(request), EngineRequest)
        self.sent.append(request)
        self.steps.append(step)
        planned = step.replica if step is not None else None
        replica = self.divert or planned or next(iter(self.engines))
        stream = deliveries(replica, self.engines[replica].generate(request))
        async with contextlib.aclosing(stream):
            async for delivery in stream:
                yield delivery


class LocalPlanner:
    """The real index without its actor; `down` makes it answer nothing."""

    def __init__(self, replicas: list[ReplicaId]) -> None:
        self.index = ContextIndex()
        self.index.set_replicas([ReplicaInfo(name, PAGE, 1 << 20) for name in replicas])
        self.heard: list[Feedback] = []
        self.batches: list[int] = []
        self.down = False
        self.delay_s = 0.0

    async def plan(self, requests: list[PlanRequest]) -> list[Step] | None:
        self.batches.append(len(requests))
        await asyncio.sleep(self.delay_s)
        return None if self.down else self.index.plan(requests, time.monotonic())

    def feedback(self, event: Feedback) -> None:
        self.heard.append(event)
        self.index.hear(event, time.monotonic())
        self.index.check()


class MemoryStore:
    """Records in a dict; `fault` is raised by every call."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.fault: CpRayError | None = None

    async def get_records(self, keys: Sequence[str], ttl_s: int) -> list[bytes | None]:
        if self.fault is not None:
            raise self.fault
        return [self.records.get(key) for key in keys]

    async def put_records(self, values: Mapping[str, bytes], ttl_s: int) -> None:
        if self.fault is not None:
            raise self.fault
        self.records |= values


class Bench:
    """One router and all it stands on, for a test to look at and break."""

    def __init__(
        self,
        *,
        store: RecordStore | None = None,
        tokenizer: PromptTokenizer | None = None,
        planner: LocalPlanner | None = None,
        engines: dict[ReplicaId, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.config = AppConfig.model_validate(
            {"engine": "simulated", "model": "sim", "max_documents": 64, **settings}
        )
        self.engine = TapeEngine()
        self.dispatcher = LocalDispatcher(engines or {ReplicaId("r0"): self.engine})
        self.planner = planner or LocalPlanner([ReplicaId("r0")])
        self.tokenizer = tokenizer or WordTokenizer()
        self.store: RecordStore = store or MemoryStore()
        self.service = Service(
            self.config,
            tokenizer=self.tokenizer,
            planner=self.planner,
            dispatcher=self.dispatcher,
            store=self.store,
            fetch_info=self._info,
        )
        self.url = ""

    async def _info(self) -> EngineInfo:
        return self.engine.info


@contextlib.contextmanager
def running(bench: Bench) -> Iterator[Bench]:
    """Serve the bench's router by uvicorn in a thread of this process."""
    with served(build_api(bench.service)) as url:
        bench.url = url
        yield bench


@contextlib.contextmanager
def served(api: Any) -> Iterator[str]:
    """Base address of an ASGI application."""
    config = uvicorn.Config(api, host="127.0.0.1", port=0, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the server does not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def wait_for(condition: Any, seconds: float = 5.0) -> None:
    """Poll until `condition()` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition does not come true"
        time.sleep(0.005)
