"""IndexClient: plans from the index actor, or None in time. A request never fails by the index."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ray.exceptions import RayError

from cp_ray.config import AppConfig
from cp_ray.core.types import Feedback, PlanRequest, RequestId, Settled, Step
from cp_ray.core.warming import Offer
from cp_ray.index_actor.actor import obtain_index
from cp_ray.index_actor.line import Line
from cp_ray.store import wire

FLUSH_S = 0.01
"""How long feedback waits for a plan call that takes it along."""
MAX_BATCH = 4096
MAX_BUFFER = 65_536
"""Feedback kept while the index is down; past it the oldest is dropped."""
PROBE_S = 0.2
MAX_PROBE_S = 2.0
KEEPALIVE_S = 5.0
PROBE_TIMEOUT_S = 2.0
_log = logging.getLogger("ray.serve")


class IndexClient:
    """One per ingress replica, for its event loop; needs no call before the first plan.

    A breaker: after a fault, whatever it is, every plan is None at once, until a probe in the
    background answers.
    """

    def __init__(self, app: str, config: AppConfig) -> None:
        self._app = app
        self._config = config
        self._deadline_s = config.plan_deadline_ms / 1000
        self._actor: Any = None
        self._line: Line | None = None
        self._ahead_s = 0.0
        self._up = False
        self._buffer: deque[Feedback] = deque(maxlen=MAX_BUFFER)
        self._heard = asyncio.Event()
        self._fault = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._counters: Counter[str] = Counter()

    def start(self) -> None:
        """Look the actor up, and make it if there is none, in the background."""
        if not self._tasks:
            self._fault.set()
            self._spawn(self._keep_up())
            self._spawn(self._keep_flushing())

    @property
    def up(self) -> bool:
        """Whether the index answered last."""
        return self._up

    @property
    def actor(self) -> Any:
        """Handle of the index actor; None while it is down."""
        return self._actor if self._up else None

    def counters(self) -> dict[str, int]:
        """planned, passed_through, late, feedback_dropped, faults since the start."""
        names = ("planned", "passed_through", "late", "feedback_dropped", "faults")
        return {name: self._counters[name] for name in names}

    async def plan(self, requests: Sequence[PlanRequest]) -> list[Step] | None:
        """Steps in the order of the requests, or None: the index is down or late.

        A plan that comes after the deadline is taken back.
        """
        self.start()
        if not self._up:
            self._counters["passed_through"] += len(requests)
            return None
        deadline_s = time.monotonic() + self._ahead_s + self._deadline_s
        call = self._spawn(self._plan(list(requests), deadline_s))
        try:
            done, _ = await asyncio.wait({call}, timeout=self._deadline_s)
        except asyncio.CancelledError:
            call.add_done_callback(self._take_back)
            raise
        if not done:
            self._counters["late"] += 1
            self._break("no plan within plan_deadline_ms")
            call.add_done_callback(self._take_back)
        steps = call.result() if done else None
        self._counters["planned" if steps else "passed_through"] += len(requests)
        return steps

    def feedback(self, event: Feedback) -> None:
        """Tell the index with the next plan, or a little later. Never blocks, never raises."""
        if len(self._buffer) == MAX_BUFFER:
            self._counters["feedback_dropped"] += 1
        self._buffer.append(event)
        self._heard.set()

    async def warm_offers(self) -> list[Offer]:
        """What replicas that joined should prefill now; none while the index is down."""
        if not self._up:
            return []
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                answer = await self._actor.warm_offers.remote()
        except (RayError, TimeoutError):  # the next plan or probe finds out what is wrong
            return []
        return wire.decode(answer, list[Offer])

    async def warm(self, offer: Offer, name: RequestId) -> Step | None:
        """The plan for an offer, to be sent under this name; None when it is too late."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                answer = await self._actor.warm.remote(wire.encode(offer), name)
        except (RayError, TimeoutError):
            self.feedback(Settled(name, 0, ok=False))  # it may be planned all the same
            return None
        return wire.decode(answer, Step) if answer else None

    async def state(self) -> dict[str, Any] | None:
        """The actor's `state()`; None when the index is down."""
        if not self._up:
            return None
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                state: dict[str, Any] = await self._actor.state.remote()
        except (RayError, TimeoutError):
            return None
        return state

    async def close(self) -> None:
        """Stop the background tasks; the actor stays for the other ingresses."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._hang_up()

    async def _plan(self, requests: list[PlanRequest], deadline: float) -> list[Step] | None:
        heard, line = self._take(), self._line
        try:
            call = wire.encode(requests), deadline, wire.encode(heard) if heard else b""
            if line is not None and line.open:
                answer = await line.plan(*call)
            else:
                answer = await self._actor.plan.remote(*call)
            return wire.decode(answer, list[Step]) if answer else None
        except Exception as error:  # noqa: BLE001 - whatever it is, requests pass through
            self._counters["feedback_dropped"] += len(heard)
            for request in requests:  # it may be planned all the same
                self.feedback(Settled(request.request_id, 0, ok=False))
            if line is None or line is self._line:  # else we hung up after a fault that is known
                self._break(repr(error))
            return None

    def _take(self) -> list[Feedback]:
        """The oldest feedback."""
        return [self._buffer.popleft() for _ in range(min(MAX_BATCH, len(self._buffer)))]

    def _take_back(self, call: asyncio.Task[list[Step] | None]) -> None:
        """Free what a plan reserved that nobody waits for any more."""
        steps = None if call.cancelled() else call.result()
        for step in steps or ():
            self.feedback(Settled(step.request_id, 0, ok=False))

    def _break(self, why: str) -> None:
        if self._up:
            _log.warning("The index is down, requests pass through: %s", why[:300])
            self._counters["faults"] += 1
        self._up = False
        self._fault.set()

    async def _keep_up(self) -> None:
        """Probe the actor after every fault, and now and then; find it again when it is gone."""
        pause_s = PROBE_S
        asks_for_line = True  # not at each look: on another host there never is one
        while True:
            # Not `wait_for`: in Python 3.11 it may swallow the cancellation that `close` waits for.
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEPALIVE_S):
                    await self._fault.wait()
            try:
                if self._fault.is_set():
                    # The same handle survives a restart; a name that is gone is made anew.
                    self._actor = await asyncio.to_thread(obtain_index, self._app, self._config)
                    self._hang_up()  # it may lead to a process that this actor has left
                    asks_for_line = True
                asked_s = time.monotonic()
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    its_s: float = await self._actor.ready.remote()
                if asks_for_line or (self._line is not None and not self._line.open):
                    async with asyncio.timeout(PROBE_TIMEOUT_S):
                        self._line = await self._connected()
                    asks_for_line = False
                self._ahead_s = its_s - asked_s  # by the answer's way too much: never too early
            except Exception as error:  # noqa: BLE001 - whatever it is, the next probe may do better
                self._break(repr(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PROBE_S)
                continue
            pause_s = PROBE_S
            self._fault.clear()
            self._up = True
            self._heard.set()

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.abort()

    async def _connected(self) -> Line | None:
        where = await self._actor.line.remote()
        return None if where is None else await Line.connect(*where)

    async def _keep_flushing(self) -> None:
        while True:
            await self._heard.wait()
            await asyncio.sleep(FLUSH_S)
            self._heard.clear()
            while self._buffer and self._up:
                batch = self._take()
                try:
                    if self._line is not None and self._line.open:
                        self._line.hear(wire.encode(batch))
                    else:
                        await self._actor.hear.remote(wire.encode(batch))
                except Exception as error:  # noqa: BLE001 - else no feedback would ever go again
                    # Forgotten, and not sent twice: a restarted index knows none of these requests.
                    self._counters["feedback_dropped"] += len(batch)
                    self._break(repr(error))

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
