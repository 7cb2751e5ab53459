"""DirectRouter: plans requests of the direct data plane; answers go past it.

HAProxy shows it the body of each POST, asks where it goes, and sends it there with the plan as a
header. Whatever goes wrong here, the request goes to some replica, which finds the fault itself or
plans for itself: no answer may depend on the index, and HAProxy has only a bare 503 to say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import FastAPI, Request
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.responses import JSONResponse, Response

from cp_ray.allocator import keep_trimmed
from cp_ray.config import AppConfig
from cp_ray.core.types import PlanRequest
from cp_ray.errors import (
    CpRayError,
    EngineUnavailable,
    InvariantError,
    Overloaded,
    Unauthorized,
    to_http,
)
from cp_ray.router.api import ChatRequest, CompletionRequest
from cp_ray.router.handed import (
    AUTHORIZATION,
    HEADER,
    Counted,
    Given,
    Handed,
    Refused,
    Seal,
    hand,
)
from cp_ray.router.ingress import info_of
from cp_ray.router.limits import parse, read_json
from cp_ray.router.parts import Parts
from cp_ray.router.request_router import PLAN_KWARG, CallPlan
from cp_ray.router.service import Service
from cp_ray.workers.engine import Delivery

_log = logging.getLogger("ray.serve")
PLAN_S, CHOOSE_S = 2.0, 2.0
"""HAProxy waits five seconds for both."""
CUT = "x-body-truncated"
"""HAProxy's mark of a body of which it shows the beginning alone."""


@serve.ingress()
class DirectRouter:
    """One Router replica: bodies in, plans out."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config_json: str, engine: DeploymentHandle
    ) -> None:
        """Raises ConfigError when the model's tokenizer or Redis cannot be used."""
        config = AppConfig.model_validate_json(config_json)
        self._parts = await Parts.gather(config)
        self._trimming = asyncio.create_task(keep_trimmed())
        self._service = self._parts.service("router", _Nowhere(), info_of(engine))
        self._replicas = Replicas(engine)
        self._seal = Seal(config_json)

    async def fills(self) -> dict[str, tuple[int, int]]:
        """What traffic fills: tokens of texts kept, and the most there can be."""
        return self._parts.fills()

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        return route_api(self._service, self._replicas.choose, self._seal)


class Replicas:
    """Full names of the engine's replicas, as HAProxy knows them."""

    def __init__(self, engine: DeploymentHandle) -> None:
        self._engine = engine
        self._prefix = f"SERVE_REPLICA::{engine.app_name}#{engine.deployment_name}#"

    async def choose(self, plan: Given | None) -> str:
        """The planned replica; else, by Serve's own request router, the branch's or a free one.

        Serve asks a replica whether it has room, as it does before it sends a request itself.

        Raises TimeoutError, RayError or RayServeException when there is none.
        """
        handed = plan if isinstance(plan, Handed) else None
        if handed is not None and handed.replica is not None:
            return self._prefix + handed.replica
        call = CallPlan(branch=handed.branch) if handed is not None else CallPlan()
        async with asyncio.timeout(CHOOSE_S):
            async with self._engine.choose_replica(**{PLAN_KWARG: call}) as selection:
                return self._prefix + selection.replica_id


Choose = Callable[[Given | None], Awaitable[str]]
"""As `Replicas.choose`."""


def route_api(service: Service, choose: Choose, seal: Seal) -> FastAPI:
    """`POST /internal/route` as HAProxy asks it."""
    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @api.post("/internal/route")
    async def route(request: Request) -> Response:
        data = await request.body()
        plan = None
        if CUT not in request.headers:
            plan = await in_time(planned(service, data, request.headers.get(AUTHORIZATION)))
        try:
            replica = await choose(plan)
        except (TimeoutError, RayError, RayServeException) as error:
            _log.warning("no engine replica to send a request to: %s", error)
            return JSONResponse({"detail": "no engine replica runs"}, 503)
        headers = {} if plan is None else {HEADER: seal.header(plan)}
        return JSONResponse({"replica_id": replica, "request_headers": headers})

    @api.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    return api


async def planned(service: Service, data: bytes, authorization: str | None) -> Given | None:
    """The plan of a generation, or a tenant's refusal; None for what is no generation.

    Other faults are the replica's to find: it has the whole body and its path, which do not come
    here. What merely looks like a generation is planned, and taken back there.
    """
    began = time.perf_counter()
    if service.config.reuse == "plain":
        return None
    counted = False
    try:
        body = read_json(data)
        if "messages" not in body and "prompt" not in body:
            return None
        tenant = service.admit(authorization)
        counted = True
        kind: type[ChatRequest] | type[CompletionRequest]
        kind = ChatRequest if body.get("messages") is not None else CompletionRequest
        asked = parse(kind, body, service.config)
        prepared, step = await service.planning.plan(asked, tenant, service.config.reuse, _as_it_is)
    except (Unauthorized, Overloaded, EngineUnavailable) as error:
        return Refused(*to_http(error))
    except Exception as error:  # noqa: BLE001 - the boundary: the replica will meet it, and say so
        if not isinstance(error, CpRayError):
            _log.exception("a request could not be planned")
        step = None
    if step is None:
        return Counted() if counted else None
    return hand(prepared.plan, step, round(1000 * (time.perf_counter() - began), 3))


async def in_time(planning: Awaitable[Given | None]) -> Given | None:
    """What comes of it within PLAN_S: the replica plans what takes longer."""
    try:
        async with asyncio.timeout(PLAN_S):
            return await planning
    except TimeoutError:
        return None


def _as_it_is(plan: PlanRequest) -> PlanRequest:
    return plan


class _Nowhere:
    """A Dispatcher where nothing is dispatched: HAProxy sends requests to their replicas."""

    def stream(self, *call: object) -> AsyncIterator[Delivery]:
        """Never called."""
        raise InvariantError(f"dispatched by a Router of the direct data plane: {call}")
