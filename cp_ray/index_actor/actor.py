"""The index actor: one ContextIndex for the whole application, behind bytes."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import logging
import os
import time
from pathlib import Path
from typing import Any

import ray

from cp_ray.allocator import keep_trimmed
from cp_ray.config import AppConfig
from cp_ray.core.arrivals import Arrivals
from cp_ray.core.hearing import Hearing
from cp_ray.core.index import ContextIndex
from cp_ray.core.limits import Limits
from cp_ray.core.offline import OfflineOrders
from cp_ray.core.record import State
from cp_ray.core.story import Story
from cp_ray.core.types import (
    DumpRequest,
    Feedback,
    PlanRequest,
    ReplicaInfo,
    ReplicaMessage,
    RequestId,
    Routed,
    Settled,
)
from cp_ray.core.warming import Offer, Warming
from cp_ray.errors import ConfigError
from cp_ray.index_actor.collector import collect_seldom
from cp_ray.index_actor.journal import IndexJournal
from cp_ray.index_actor.line import Lines
from cp_ray.index_actor.observer import Observer
from cp_ray.index_actor.recording import Recording
from cp_ray.index_actor.report_reader import ReportReader
from cp_ray.index_actor.serve_live_set import LiveSet
from cp_ray.index_actor.spans import told
from cp_ray.named_actor import application_gone, end, index_prefix, names_with, obtain
from cp_ray.store import wire
from cp_ray.store.client import Store
from cp_ray.store.embedded_actor import redis_url
from cp_ray.tracing import new_tracer

GRACE_S = 1.0
"""A client knows our clock as well as its probe was quick: only what is later than this is late."""
HEARING_S = 1.0
PROTOCOL = 4
"""Of the calls below: Routers of other code get an index of their own."""
ENGINE = "Engine"
"""Name of the engine deployment."""
_log = logging.getLogger("ray.serve")
SUPERSEDED_AFTER_S = 30.0
"""Clients call every few seconds; without one this long, another index has taken over."""


class IndexActor:
    """Owns the index; follows Serve's live set and the engines' reports by itself.

    After a crash it recovers from its journal; what was lost with it costs one prefill each.
    """

    def __init__(self, app: str, config_json: str) -> None:
        self._app = app
        self._config = AppConfig.model_validate_json(config_json)
        self._index = new_index(self._config)
        self._live: list[ReplicaInfo] = []
        self._late = 0
        self._called = self._began = time.monotonic()
        self._has_live = asyncio.Event()
        self._hearing = Hearing(self._index)
        self._warming = Warming(self._index)
        self._reader = ReportReader(self._connect, self._apply, self._dump_requests)
        self._journal = IndexJournal(self._index, self._connect, self._known_live, self._reader.ask)
        self._live_set = LiveSet(app, ENGINE, self._set_live)
        record = self._config.record
        self._lines = Lines(self._plan, self._hear)
        recording = Recording(Path(record)) if record is not None else None
        self._observer = Observer(app, self._index, self._reader, recording)
        self._tracer = new_tracer(self._config, app, "index")
        me = ray.get_runtime_context().current_actor
        self._tasks = [
            asyncio.create_task(self._live_set.run()),
            asyncio.create_task(self._journal.run()),
            asyncio.create_task(self._reader.run()),
            asyncio.create_task(self._keep_hearing()),
            asyncio.create_task(self._observer.run()),
            asyncio.create_task(keep_trimmed()),
            asyncio.create_task(self._end_with_application(me)),
            asyncio.create_task(self._end_when_superseded(me)),
        ]
        for task in self._tasks:
            task.add_done_callback(_begin_anew)
        importlib.import_module("scipy.optimize")  # the first fit would, for a tenth of a second
        collect_seldom()

    async def plan(self, payload: bytes, deadline_s: float, heard: bytes) -> bytes:
        """Wire-encoded list[PlanRequest] -> list[Step]; nothing when nobody waits any more.

        deadline_s: when the caller stops waiting, on the clock that `ready` told it. heard: what
        `hear` takes, or nothing; a call of its own would cost the caller and us a millisecond each.
        """
        return self._plan(payload, deadline_s, heard)

    def _plan(self, payload: bytes, deadline_s: float, heard: bytes) -> bytes:
        if heard:
            try:
                self._hear(heard)
            except Exception:  # noqa: BLE001 - whatever it was, somebody waits for the plan
                _log.exception("Feedback was lost; the plan that brought it goes on.")
        if time.monotonic() > deadline_s + GRACE_S:
            self._late += 1
            return b""
        requests = wire.decode(payload, list[PlanRequest])
        began = time.monotonic()
        spans = [self._tracer.follow("index", request.traceparent) for request in requests]
        steps = self._index.plan(requests, began)
        self._observer.planned(time.monotonic() - began)
        told(spans, requests, steps)
        if self._config.prewarm:
            self._warming.asked(requests)
        return wire.encode(steps)

    async def hear(self, payload: bytes) -> None:
        """Wire-encoded list[Feedback]."""
        self._hear(payload)

    def _hear(self, payload: bytes) -> None:
        now = time.monotonic()
        for feedback in wire.decode(payload, list[Feedback]):
            try:
                self._index.hear(feedback, now)
            except Exception:  # noqa: BLE001 - what follows is of other requests
                _log.exception("Feedback of request %s was lost.", feedback.request_id)
                continue
            if isinstance(feedback, Routed):
                self._hearing.served(feedback.replica, now)
            elif isinstance(feedback, Settled) and feedback.ok:
                self._journal.ended(feedback.request_id)

    async def line(self) -> tuple[str, bytes] | None:
        """Where `plan` and `hear` are reached without Ray on this host, and the secret for it."""
        return await self._lines.where()

    async def warm_offers(self) -> bytes:
        """Wire-encoded list[Offer]: what replicas should prefill ahead of clients now."""
        return wire.encode(self._warming.offers())

    async def warm(self, payload: bytes, name: str) -> bytes:
        """Wire-encoded Offer -> Step under this name; nothing when it is too late for it."""
        offer = wire.decode(payload, Offer)
        step = self._warming.claim(offer, RequestId(name), time.monotonic())
        return wire.encode(step) if step is not None else b""

    async def tell(self, payload: bytes) -> None:
        """Wire-encoded list[Story]."""
        self._observer.tell(wire.decode(payload, list[Story]))

    async def fleet(self, since: float) -> bytes:
        """JSON of the fleet; series from `since` on, seconds since 1970."""
        return self._observer.fleet(since)

    async def explain(self, request_id: str) -> tuple[str, bytes] | None:
        """Tenant and JSON of one of the last requests."""
        return self._observer.explain(request_id)

    async def ready(self) -> float:
        """This process' clock, seconds of any origin, which no operator can set.

        It tells a client that the actor answers, and the actor that it has a client.
        """
        self._called = time.monotonic()
        return self._called

    async def counters(self) -> dict[str, int]:
        """Counts since the start of the actor."""
        shells = self._reader.counters() | self._journal.counters()
        own = self._warming.counters() | self._lines.counters() | {"plans_too_late": self._late}
        return self._index.counters() | shells | own

    async def state(self) -> dict[str, Any]:
        """Live replicas, sizes, report counts, and where they come from; JSON types."""
        return {
            "pid": os.getpid(),
            "uptime_s": time.monotonic() - self._began,
            "replicas": [str(info.replica) for info in self._live],
            "rungs": {str(info.replica): self._hearing.rung(info.replica) for info in self._live},
            "live_set": self._live_set.source,
            "redis_connected": self._reader.connected,
            "report_lag_s": self._reader.lag_s,
            "recovering": self._journal.recovering,
            "recovery_s": self._journal.seconds,
            "recovery_cpu_s": self._journal.cpu_s,
            "counters": await self.counters(),
        }

    async def fills(self) -> dict[str, tuple[int, int]]:
        """What traffic fills: entries held, and the most there can be by the settings."""
        index = self._index
        return {
            "records": (len(index.memory.records), index.max_records),
            "remembered orders": index.memory.remembered_orders(),
            "last orders": index.rest_order.fill(),
            "accounts of loss": index.losses.fill(),
            "stories": self._observer.fill(),
            "journal": self._journal.fill(),
            "reports in Redis": (await self._reader.reports(), self._config.reports_kept),
        }

    async def records(self) -> bytes:
        """Wire-encoded: of each replica the ended requests, and how many tokens they have left."""
        held: dict[str, dict[str, int]] = {}
        for name, record in self._index.memory.records.items():
            if record.state is State.RESIDENT:
                held.setdefault(record.replica, {})[name] = record.tokens_left
        return wire.encode(held)

    def _set_live(self, live: list[ReplicaInfo]) -> None:
        before = {info.replica for info in self._live}
        gone = before - {info.replica for info in live}
        talks = self._warming.leaving(gone) if gone and self._config.prewarm else []
        self._live = live
        self._index.set_replicas(live)
        if before and self._config.prewarm:  # the first ones have nobody to learn from
            self._warming.joined([info for info in live if info.replica not in before])
            self._warming.left(talks)
        if live:
            self._has_live.set()

    async def _known_live(self) -> None:
        await self._has_live.wait()

    def _apply(self, message: ReplicaMessage) -> None:
        self._hearing.reported(message.replica, time.monotonic())
        self._index.apply(message)

    async def _keep_hearing(self) -> None:
        while True:
            await asyncio.sleep(HEARING_S)
            self._hearing.tick(time.monotonic())

    def _dump_requests(self, now: float) -> tuple[DumpRequest, ...]:
        """Whom to ask for a dump: nobody while records still come back, one dump must do."""
        return () if self._journal.recovering else self._index.dump_requests(now)

    async def _connect(self) -> Store:
        return await Store.connect(await redis_url(self._config, self._app), self._app)

    async def _end_with_application(self, me: Any) -> None:
        await application_gone(self._app)
        end(me, "its Serve application is gone")

    async def _end_when_superseded(self, me: Any) -> None:
        """The application runs on with other settings, hence with another index."""
        while True:
            await asyncio.sleep(SUPERSEDED_AFTER_S / 3)
            if time.monotonic() - self._called < SUPERSEDED_AFTER_S:
                continue
            if len(await asyncio.to_thread(names_with, index_prefix(self._app))) > 1:
                end(me, "no client uses it, and there is another index")


def _begin_anew(task: asyncio.Task[None]) -> None:
    """Without one of its tasks the index is blind or deaf: Ray restarts it, and it recovers."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("The index starts anew: a task of it ended.", exc_info=task.exception())
        os._exit(1)


def new_index(config: AppConfig) -> ContextIndex:
    """Empty index, or the one in the file `config.index`. Raises ConfigError."""
    offline = None
    if config.index is not None:
        try:
            offline = OfflineOrders.load(Path(config.index).read_bytes())
        except OSError as error:
            raise ConfigError(f"index file cannot be read: {error}", param="index") from error
    limits = Limits(config.keep_top, config.max_displacement)
    records = config.index_records
    arrivals = Arrivals() if config.data_plane == "direct" else None
    return ContextIndex(
        config.alpha, max_records=records, offline=offline, limits=limits, arrivals=arrivals
    )


def obtain_index(app: str, config: AppConfig) -> Any:
    """Handle of the application's index actor. Blocks: use a thread.

    The name carries the settings, so that an upgraded application does not meet an old index.
    """
    config_json = config.to_json()
    digest = hashlib.blake2b(f"{PROTOCOL}{config_json}".encode(), digest_size=4).hexdigest()
    return obtain(IndexActor, index_prefix(app) + digest, app, config_json)
