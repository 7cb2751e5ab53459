"""Dispatch: one request to the engine deployment, its stream back, and Ray's errors as ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    ReplicaUnavailableError,
)
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from cp_ray.core.types import Step
from cp_ray.errors import CpRayError, EngineError, EngineGone, EngineUnavailable, Overloaded
from cp_ray.router.liveness import Liveness
from cp_ray.router.request_router import CallPlan
from cp_ray.store import wire
from cp_ray.workers.engine import Delivery, EngineRequest

TRIES = 3
"""A request whose replica dies before it answers is sent again: generation has no side effect."""
REPLICA_LOST = "replica_lost"
"""Code of the EngineError for an answer that was cut."""


class _Stopped(Exception):
    """The replica that has the request does not answer to anything."""


_GONE = (RayError, ReplicaUnavailableError, EngineGone, _Stopped)
"""Of Ray's errors all but RayTaskError, which carries what the replica raised."""


class Dispatcher:
    """Sends requests through one Serve handle of the engine deployment.

    liveness: whom to ask whether a replica that keeps silent still runs.
    """

    def __init__(self, handle: DeploymentHandle, liveness: Liveness | None = None) -> None:
        self._handle = handle.options(stream=True)
        self._liveness = liveness or Liveness(handle)

    async def stream(
        self, step: Step | None, request: EngineRequest, issued: Callable[[], None] | None = None
    ) -> AsyncGenerator[Delivery, None]:
        """Deliveries of one request, in order; the first comes with the first token.

        step: where to; None balances by load. A replica that died or stopped, or whose engine did,
        before its first token costs another try elsewhere; behind it, it is an EngineError. Closing
        the iterator aborts the request in the engine. Raises the engine's own CpRayError,
        Overloaded when the queue is full, EngineUnavailable when no replica could take it,
        EngineError when one failed on it. issued: called when it is handed to Serve, at each try.
        """
        payload = wire.encode(request)
        plan = _call_plan(step, self._liveness.stopped)
        for attempt in range(TRIES):
            started = False
            try:
                async with aclosing(self._attempt(payload, plan, issued)) as deliveries:
                    async for delivery in deliveries:
                        started = True
                        yield delivery
            except _GONE as error:
                if started:
                    raise EngineError(
                        "the engine replica was lost while it answered, so the answer is "
                        "incomplete: send the request again",
                        code=REPLICA_LOST,
                    ) from error
                if isinstance(error, EngineGone) and (name := plan.get("sent_to")) is not None:
                    self._liveness.leave_out(name)  # its process lives, and would take more
                plan = _without_replica(plan)
                await asyncio.sleep(0.05 * 2**attempt)
            else:
                return
        raise EngineUnavailable(
            f"{TRIES} engine replicas in turn were lost before they answered: try again"
        )

    async def _attempt(
        self, payload: bytes, plan: CallPlan, issued: Callable[[], None] | None
    ) -> AsyncGenerator[Delivery, None]:
        response = self._handle.generate.remote(payload, cp_plan=plan)
        if issued is not None:
            issued()
        finished = False
        try:
            while (data := await self._next(response, plan)) is not None:
                yield wire.decode(data, Delivery)
            finished = True
        except RayTaskError as error:
            finished = True
            raise _cause(error) from error
        except _Stopped:
            raise
        except _GONE:
            finished = True  # there is nothing left to cancel
            raise
        except BackPressureError as error:
            finished = True
            raise Overloaded(
                "every engine replica is busy and the queue is full: try again later"
            ) from error
        except DeploymentUnavailableError as error:
            finished = True
            raise EngineUnavailable("the engine deployment failed to start") from error
        finally:
            if not finished:
                response.cancel()

    async def _next(
        self, response: DeploymentResponseGenerator[Any], plan: CallPlan
    ) -> bytes | None:
        """The next message, None behind the last; raises _Stopped."""
        coming = asyncio.ensure_future(_anext(response))
        try:
            while True:
                done, _ = await asyncio.wait({coming}, timeout=self._liveness.ask_after_s)
                if done:
                    return coming.result()
                sent_to = plan.get("sent_to")  # unset while it waits for a replica with room
                if sent_to is not None and await self._liveness.is_stopped(sent_to):
                    raise _Stopped
        finally:
            coming.cancel()


async def _anext(response: DeploymentResponseGenerator[Any]) -> bytes | None:
    try:
        data: bytes = await anext(response)
    except StopAsyncIteration:
        return None
    return data


def _cause(error: RayTaskError) -> Exception:
    """What the replica raised, without Ray's wrapping."""
    cause = error.cause
    if isinstance(cause, CpRayError):
        return cause
    return EngineError(f"the engine replica failed: {type(cause).__name__}: {cause}")


def _call_plan(step: Step | None, stopped: frozenset[str]) -> CallPlan:
    avoid = sorted(stopped)
    if step is None:
        return CallPlan(avoid=avoid)
    return CallPlan(replica=step.replica, branch=step.branch, avoid=avoid)


def _without_replica(plan: CallPlan) -> CallPlan:
    """Keep the branch: its requests meet again on one other replica."""
    lost = [name for name in (plan.get("replica"), plan.get("sent_to")) if name is not None]
    avoid = [*plan.get("avoid", []), *lost]
    return CallPlan(replica=None, branch=plan.get("branch", ""), avoid=avoid)
