"""Plans that come with requests: whoever follows one takes it; the others are taken back.

The index is told that a plan has arrived (`core/arrivals.py`). Whatever becomes of its request then
(refused, of another route, its client gone), the index must not wait for what it planned.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from cp_ray.core.types import Arrived, Settled
from cp_ray.router.handed import HEADER, Counted, Given, Handed, Refused, Seal
from cp_ray.router.ports import Planner

_KEY = "cp_ray.taken"


class Taken:
    """What came with one request. counted: whether a Router has counted it."""

    def __init__(self, given: Given | None = None) -> None:
        self.refused = given if isinstance(given, Refused) else None
        self.counted = isinstance(given, Handed | Counted)
        self._plan = given if isinstance(given, Handed) else None

    def take(self) -> Handed | None:
        """The plan, once: who takes it tells the index what becomes of it."""
        plan, self._plan = self._plan, None
        return plan


class TakesBack:
    """ASGI application around another. seal: of the Routers that are believed."""

    def __init__(self, app: ASGIApp, seal: Seal, planner: Planner) -> None:
        self._app = app
        self._seal = seal
        self._planner = planner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = self._seal.read(Headers(scope=scope).get(HEADER))
        taken = scope[_KEY] = Taken(given)
        if isinstance(given, Handed):
            self._planner.feedback(Arrived(given.request_id))  # now: it may have to wait here
        try:
            await self._app(scope, receive, send)
        finally:
            if (plan := taken.take()) is not None:
                self._planner.feedback(Settled(plan.request_id, 0, ok=False))


def taken_of(request: Request) -> Taken:
    """What came with it; nothing on the data plane on which nothing does."""
    taken: Taken = request.scope.get(_KEY) or Taken()
    return taken
