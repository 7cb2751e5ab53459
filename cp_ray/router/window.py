"""The scheduling window: requests that come together are planned together (paper 5.2).

A request that finds the window idle waits for nothing. While a plan call is in flight requests
gather; the next call goes out when enough have come or the oldest is old enough.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from cp_ray.core.scheduling import with_positions
from cp_ray.core.types import PlanRequest, Settled, Step
from cp_ray.router.ports import Planner

_log = logging.getLogger(__name__)


class Planned(msgspec.Struct, frozen=True):
    """A step and its place among those sent at the same time. position: in its group."""

    step: Step
    position: int


class _Waiting:
    def __init__(self, request: PlanRequest, now: float) -> None:
        self.request = request
        self.arrived = now
        self.answer: asyncio.Future[Planned] = asyncio.get_running_loop().create_future()


class Window:
    """Owns the requests that wait for a plan. One event loop; `plan` may be cancelled."""

    def __init__(self, planner: Planner, *, max_size: int, max_wait_s: float) -> None:
        self._planner = planner
        self._max_size = max_size
        self._max_wait_s = max_wait_s
        self._waiting: list[_Waiting] = []
        self._enough = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "idle" if self._worker is None else "planning"
        return f"<Window {state}, {len(self._waiting)} waiting>"

    async def plan(self, request: PlanRequest) -> Planned:
        """Wait for the request's step. Steps of one call are released in the order planned."""
        waiting = _Waiting(request, asyncio.get_running_loop().time())
        self._waiting.append(waiting)
        if len(self._waiting) >= self._max_size:
            self._enough.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            if waiting.answer.done() and not waiting.answer.cancelled():
                self._abandon(waiting)  # planned in the very tick its client went away
            raise

    async def _work(self) -> None:
        try:
            idle = True
            while self._waiting:
                if not idle:
                    await self._gather()
                idle = False
                batch = self._waiting[: self._max_size]
                del self._waiting[: self._max_size]
                await self._release([waiting for waiting in batch if not waiting.answer.done()])
        finally:
            self._worker = None

    async def _gather(self) -> None:
        age = asyncio.get_running_loop().time() - self._waiting[0].arrived
        self._enough.clear()
        if len(self._waiting) >= self._max_size or age >= self._max_wait_s:
            return
        try:
            async with asyncio.timeout(self._max_wait_s - age):
                await self._enough.wait()
        except TimeoutError:
            return

    async def _release(self, batch: list[_Waiting]) -> None:
        by_id = {waiting.request.request_id: waiting for waiting in batch}
        steps = await plan_or_pass(self._planner, [waiting.request for waiting in batch])
        for step, position in with_positions(steps):
            waiting = by_id[step.request_id]
            if waiting.answer.done():
                self._abandon(waiting)
            else:
                waiting.answer.set_result(Planned(step, position))

    def _abandon(self, waiting: _Waiting) -> None:
        """The client left: free what the plan reserved."""
        self._planner.feedback(Settled(waiting.request.request_id, 0, ok=False))


async def plan_or_pass(planner: Planner, requests: list[PlanRequest]) -> list[Step]:
    """A valid step for every request, in the order of sending; what is doubtful passes through."""
    if not requests:
        return []
    try:
        steps = await planner.plan(requests) or []
    except Exception:  # noqa: BLE001 - no answer may depend on the index
        _log.warning("plan failed: requests pass through", exc_info=True)
        steps = []
    planned = {step.request_id: step for step in steps}
    asked = {request.request_id: request for request in requests}
    in_order = [
        *(name for name in planned if name in asked),
        *(name for name in asked if name not in planned),
    ]
    return [_checked(asked[name], planned.get(name)) for name in in_order]


def _checked(request: PlanRequest, step: Step | None) -> Step:
    if step is None or step.reason == "passthrough":
        return passthrough(request)
    permutes = sorted(step.context) == sorted(request.context)
    if permutes and (request.movable or step.context == request.context):
        return step
    _log.error("the index planned %s with other blocks: it passes through", request.request_id)
    return passthrough(request)


def passthrough(request: PlanRequest) -> Step:
    """Original order; the first block (or the head) names the branch to hash a replica from."""
    branch = request.context[0] if request.context else request.head
    return Step(
        request_id=request.request_id,
        context=request.context,
        replica=None,
        branch=branch,
        search_path=(),
        reused_tokens=0,
        reason="passthrough",
    )
