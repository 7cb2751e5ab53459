"""What the router needs of the index, the replicas and the store; shells inject the real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from cp_ray.core.types import Feedback, PlanRequest, RequestId, Step
from cp_ray.core.warming import Offer
from cp_ray.workers.engine import Delivery, EngineInfo, EngineRequest


class Planner(Protocol):
    """The index, seen from the router (`cp_ray.index_actor.client.IndexClient`)."""

    async def plan(self, requests: list[PlanRequest]) -> list[Step] | None:
        """One step for each request, any order; None = down or late: pass through."""

    def feedback(self, event: Feedback) -> None:
        """Tell the index what happened; never blocks, never raises."""


class WarmPlanner(Protocol):
    """The index, where it has replicas warmed that have just joined."""

    async def warm_offers(self) -> list[Offer]:
        """What they should prefill now, the most used first."""

    async def warm(self, offer: Offer, name: RequestId) -> Step | None:
        """Claim an offer under a new request's name; None = too late."""

    def feedback(self, event: Feedback) -> None:
        """Tell the index what happened; never blocks, never raises."""


class Dispatcher(Protocol):
    """The way to the replicas (`cp_ray.router.dispatch.Dispatcher`)."""

    def stream(
        self, step: Step | None, request: EngineRequest, issued: Callable[[], None] | None = None
    ) -> AsyncIterator[Delivery]:
        """Generate where `step` says, spilling when it must; step None = Serve's own choice.

        issued: called when the request is on its way to an engine, at each try.
        """


class RecordStore(Protocol):
    """Small values with a time to live (`cp_ray.store.client.Store`)."""

    async def get_records(self, keys: Sequence[str], ttl_s: int) -> list[bytes | None]:
        """The values, None where there is none; each found is kept `ttl_s` seconds from now."""

    async def put_records(self, values: Mapping[str, bytes], ttl_s: int) -> None:
        """Keep the values for `ttl_s` seconds, written in their order."""


FetchInfo = Callable[[], Awaitable[EngineInfo]]
"""Ask any replica for the facts of its engine."""
