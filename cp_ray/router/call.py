"""One request on its way: dispatch, stream back, and tell the index what really happened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from cp_ray.core.story import Outcome
from cp_ray.core.types import FirstToken, Routed, Settled, Step
from cp_ray.errors import EngineError
from cp_ray.router.assembly import Prepared
from cp_ray.router.ports import Dispatcher, Planner
from cp_ray.router.watch import Watch
from cp_ray.workers.engine import Chunk, Delivery, EngineRequest

SaveTurn = Callable[[], Awaitable[None]]


class Call:
    """A dispatched request. `begin`, then `chunks`, and `aclose` whatever happened.

    step: None when nothing was planned (reuse plain): then the index hears nothing.
    """

    def __init__(
        self,
        request: EngineRequest,
        prepared: Prepared,
        step: Step | None,
        *,
        planner: Planner,
        dispatcher: Dispatcher,
        save: SaveTurn | None,
        watch: Watch,
    ) -> None:
        self.request = request
        self._prepared = prepared
        self._step = step
        self._planner = planner
        self._deliveries = dispatcher.stream(step, request, watch.issued)
        self._save = save
        self._watch = watch
        self._first: Delivery | None = None
        self._last: Chunk | None = None
        self._replica: str | None = None
        self._settled = False
        self._broken = False
        self.on_close: Callable[[], None] | None = None

    async def begin(self) -> None:
        """Wait for the first tokens; until then an error still has a status code."""
        try:
            self._first = await anext(self._deliveries)
        except StopAsyncIteration:
            self._broken = True
            error = EngineError("the engine ended the stream before its first token")
            self._watch.broke(error)
            raise error from None
        except Exception as error:  # only a cancelled one was left by its client
            self._broken = True
            self._watch.broke(error)
            raise
        self._watch.first()
        self._replica = self._first.replica
        if self._step is not None:
            self._planner.feedback(Routed(self.request.request_id, self._first.replica))
            self._planner.feedback(FirstToken(self.request.request_id))

    async def chunks(self) -> AsyncIterator[Chunk]:
        """The answer. The conversation record is kept before the last chunk goes out."""
        if self._first is None:
            await self.begin()
        async for delivery in self._all():
            for chunk in delivery.chunks:
                if self._last is not None and self._last.finish_reason is not None:
                    continue  # the answer is whole; what an engine says behind it is no part of it
                self._last = chunk
                if chunk.finish_reason is not None:
                    await self._succeeded(chunk)
                yield chunk
        if not self._settled:
            raise EngineError("the engine ended the stream in the middle of the answer")

    async def aclose(self) -> None:
        """Abort what still runs. A call that only its client broke off has prefilled its prompt."""
        first = self._first.chunks[0] if self._first is not None and self._first.chunks else None
        if first is None or self._broken:
            self._settle(Settled(self.request.request_id, 0, ok=False))
        else:
            self._settle(Settled(self.request.request_id, first.cached_tokens, ok=True))
        self._tell()
        if self.on_close is not None:
            self.on_close()
        close = getattr(self._deliveries, "aclose", None)
        if close is not None:
            await close()

    def explain(self) -> dict[str, Any]:
        """The `cp_ray` object of an answer: what was planned, and what happened."""
        step, last = self._step, self._last
        order = step.context if step is not None else self._prepared.plan.context
        return {
            "request_id": self.request.request_id,
            "replica": self._replica,
            "branch": step.branch if step is not None else "",
            "order": [origin.name for block in order for origin in self._prepared.origins[block]],
            "repeated": list(self._prepared.repeated),
            "predicted_cached_tokens": step.reused_tokens if step is not None else 0,
            "cached_tokens": last.cached_tokens if last is not None else 0,
            "reason": self._reason(),
            "timing_ms": self._watch.timing(),
        }

    def _reason(self) -> str:
        if self._step is None:
            return "load"
        if self._step.replica is not None and self._replica not in (None, self._step.replica):
            return "spill"
        return self._step.reason

    async def _all(self) -> AsyncIterator[Delivery]:
        if self._first is not None:
            yield self._first
        try:
            async for delivery in self._deliveries:
                yield delivery
        except Exception as error:  # only a cancelled one was left by its client
            self._broken = True
            self._watch.broke(error)
            raise

    async def _succeeded(self, chunk: Chunk) -> None:
        self._settle(Settled(self.request.request_id, chunk.cached_tokens, True, chunk.held_tokens))
        if self._save is not None:
            await self._save()

    def _tell(self) -> None:
        last = self._last or (self._first.chunks[-1] if self._first is not None else None)
        whole = self._last is not None and self._last.finish_reason is not None
        outcome: Outcome = "ok" if whole else "failed" if self._broken else "left"
        self._watch.ended(outcome, self._replica, self._reason(), last)

    def _settle(self, settled: Settled) -> None:
        if self._settled:
            return
        self._settled = True
        if self._step is not None:
            self._planner.feedback(settled)
