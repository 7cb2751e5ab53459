"""A real engine as in a replica: reporter, real Redis, index; and the faults put between them.

Requests go one after the other, so that "after" is a number of requests.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path as Folder
from typing import Any, NamedTuple

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import (
    BlockId,
    DumpRequest,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
)
from cp_ray.index_actor.report_reader import ReportReader
from cp_ray.store.client import Store
from cp_ray.store.embedded import EmbeddedServer
from cp_ray.workers.dump_requests import DumpRequests
from cp_ray.workers.engine import Chunk
from cp_ray.workers.replica import EngineReplica
from cp_ray.workers.reporter import MAX_WAITING, Reporter
from cp_ray.workers.residency import Path
from tests.contract import suite

R = ReplicaId("r")
PATIENCE_S = 60.0
STEP_S = 3.0
"""A step's events come some ms after its tokens, on a starved machine later; some are lost here."""
MOST_UNHEARD = 20
"""Requests of a test whose events may never come."""


HEAD = (
    "| fault | detected after | resynced after | requests | failed |",
    "| --- | ---: | ---: | ---: | ---: |",
)


class Row(NamedTuple):
    """Requests until a fault was known, and until nothing wrong was believed any more."""

    fault: str
    detected: int
    resynced: int
    requests: int

    def __str__(self) -> str:
        """As a row of markdown; a request that fails ends its test, so none did."""
        return f"| {self.fault} | {self.detected} | {self.resynced} | {self.requests} | 0 |"


TABLE: list[Row] = []


class Serving:
    """One engine under an index. way: sends a report on; faults are put there."""

    def __init__(self, subject: suite.Subject, folder: Folder, max_waiting: int) -> None:
        self._subject = subject
        self._engine: Any = subject.engine
        self.page = subject.page
        self.server = EmbeddedServer(folder)
        self.url = self.server.start()
        self.index = ContextIndex()
        self.index.set_replicas([ReplicaInfo(R, subject.page, subject.info.capacity_tokens)])
        self._reporter = Reporter(R, self._send, max_waiting=max_waiting)
        self.reader = ReportReader(self._connect, self.index.apply, self.index.dump_requests)
        self.way: Callable[[bytes], Awaitable[object]] = self.append
        self.random = random.Random(5)
        self.documents = {BlockId(f"d{n}"): suite.tokens(70, f"d{n}") for n in range(24)}
        self.requests = self.hits = self._unheard = 0
        self._last: Path | None = None
        self._store: Store | None = None

    @property
    def counters(self) -> dict[str, int]:
        return self.index.counters()

    async def append(self, payload: bytes) -> None:
        if self._store is None:
            self._store = await self._connect()
        await self._store.append_report(payload)

    async def ask(self) -> tuple[int, Chunk]:
        """One planned request, answered whole; tokens predicted, and the last chunk."""
        name = RequestId(f"{id(self)}-{self.requests}")
        self.requests += 1
        few = self.random.random() < 0.5
        names = list(self.documents)[: 6 if few else None]
        context = tuple(self.random.sample(names, 3))
        lengths = tuple(len(self.documents[block]) for block in context)
        plan = PlanRequest(name, HeadId("h"), 0, context, lengths, 9)
        [step] = self.index.plan([plan], time.monotonic())
        prompt = sum((self.documents[block] for block in step.context), ()) + suite.tokens(9)
        self._last = self._engine._view.residency.path(prompt)
        last = (await suite.answer(self._subject, suite.request(prompt, 3, name=name)))[-1]
        assert last.finish_reason == "length", "every request is answered"
        now = time.monotonic()
        self.index.hear(FirstToken(name), now)
        self.index.hear(Settled(name, last.cached_tokens, True, last.held_tokens), now)
        self.index.check()
        self.hits += last.cached_tokens > 0
        await asyncio.sleep(0.01)
        return step.reused_tokens, last

    async def heard(self) -> None:
        """Until the index has heard all the replica has to say, and believes it."""

        def all_told() -> bool:
            reporter, expected = self._reporter, self.index.replicas._expected[R]
            told = not reporter._waiting and reporter._held is None
            at = (expected.epoch, expected.seq, expected.needs)
            return told and at == (reporter._epoch, reporter._seq, None)

        for _ in range(int(STEP_S / 0.005)):
            if self._step_came():
                break
            await asyncio.sleep(0.005)
        else:
            self._unheard += 1
            view = self._engine._view
            state = f"lost {view._lost}, unheard {view._unheard}, holes {view._holes}"
            assert self._unheard < MOST_UNHEARD, f"the engine's events do not come: {state}"
        for _ in range(int(PATIENCE_S / 0.005)):
            if all_told() and not self._engine._view._lost:
                await asyncio.sleep(0.005)  # the engine's last step may still be on its way
                if all_told():
                    return
            await asyncio.sleep(0.005)
        raise AssertionError("the index never heard all")

    def _step_came(self) -> bool:
        """Whether what the engine did for the last request has come, with all it evicted for it."""
        residency = self._engine._view.residency
        last = self._last
        if last is None or last.clears != residency._clears:
            return True
        return bool(residency._leading(last.keys) == len(last.keys))

    def ghosts(self) -> set[RequestId]:
        """Requests of which the index believes more than the replica holds."""
        held = self._engine.held()
        return {
            request
            for request, record in self.index._records.items()
            if record.tokens_left // self.page * self.page > held.get(request, 0)
        }

    async def clean(self, requests: int) -> None:
        """Nothing is believed that the engine does not have, by its own count."""
        hits = self.hits
        for _ in range(requests):
            predicted, last = await self.ask()
            await self.heard()
            assert predicted <= last.cached_tokens + self.page, "a ghost"
            assert last.held_tokens in (None, last.cached_tokens)
            assert not self.ghosts()
        assert self.hits - hits > requests // 4, "the workload must hit"

    async def until(self, seen: Callable[[], bool], most: int = 50) -> int:
        """Requests asked until `seen`; at most so many."""
        for count in range(most + 1):
            if seen():
                return count
            await self.ask()
        raise AssertionError(f"not seen within {most} requests")

    async def until_counted(self, counter: str, most: int = 50) -> int:
        """Requests asked until the index counts one more."""
        return await self.until_more(counter, self.counters.get(counter, 0), most)

    async def until_more(self, counter: str, than: int, most: int) -> int:
        """Requests asked until the index has counted more than that."""
        return await self.until(lambda: self.counters.get(counter, 0) > than, most)

    async def record(self, fault: str, detected: int, began: int) -> None:
        """Nothing is wrong from here on. began: requests when the fault began to be repaired."""
        await self.heard()
        assert not self.ghosts()
        resynced = self.requests - began
        await self.clean(40)
        TABLE.append(Row(fault, detected, resynced, self.requests))

    async def _send(self, payload: bytes) -> None:
        await self.way(payload)

    async def _connect(self) -> Store:
        return await Store.connect(self.url, "faults")

    async def _answer(self, request: DumpRequest) -> None:
        await EngineReplica._answer(self, request)  # type: ignore[arg-type]


@asynccontextmanager
async def serving(
    subject: suite.Subject, folder: Folder, *, max_waiting: int = MAX_WAITING
) -> AsyncIterator[Serving]:
    """The subject's engine, reporting to an index of its own, warm and exact."""
    it = Serving(subject, folder, max_waiting)
    view = it._engine._view
    ear, view._listener = view._listener, it._reporter
    asked = DumpRequests(R, it._connect, it._answer)
    tasks = [asyncio.create_task(part.run()) for part in (it._reporter, it.reader, asked)]
    try:
        await suite.until(lambda: it.reader.connected, "the index reads")
        await subject.engine.reset_cache()
        await it.heard()
        await it.clean(40)
        yield it
    finally:
        view._listener = ear
        try:
            for task in tasks:
                task.cancel()
            _, pending = await asyncio.wait(tasks, timeout=PATIENCE_S)
            assert not pending, "cancelled, they go on"
            for task in tasks:
                if not task.cancelled():
                    task.result()
            if it._store is not None:
                await it._store.close()
        finally:
            it.server.stop()
        async with asyncio.timeout(PATIENCE_S):
            await subject.engine.reset_cache()
