"""DirectRouter: plans requests of the direct data plane; answers go past it.

HAProxy shows it the body of each POST, asks where it goes, and sends it there with the plan as a
header. Whatever goes wrong here, the request goes to some replica, which finds the fault itself or
plans for itself: no answer may depend on the index, and HAProxy has only a bare 503 to say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.responses import JSONResponse, Response

from cp_ray.allocator import keep_trimmed
from cp_ray.config import AppConfig
from cp_ray.core.types import PlanRequest, Step
from cp_ray.errors import CpRayError, InvariantError, to_http
from cp_ray.router.api import ChatRequest, CompletionRequest
from cp_ray.router.handed import AUTHORIZATION, HEADER, Handed, Refused, hand
from cp_ray.router.ingress import info_of
from cp_ray.router.limits import parse, read_json
from cp_ray.router.parts import Parts
from cp_ray.router.request_router import PLAN_KWARG, CallPlan
from cp_ray.router.service import Service
from cp_ray.workers.engine import Delivery

_log = logging.getLogger("ray.serve")
CHOOSE_S = 4.0
"""HAProxy waits five."""
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

    async def fills(self) -> dict[str, tuple[int, int]]:
        """What traffic fills: tokens of texts kept, and the most there can be."""
        return self._parts.fills()

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        return route_api(self._service, self._replicas.choose)


class Replicas:
    """Full names of the engine's replicas, as HAProxy knows them."""

    def __init__(self, engine: DeploymentHandle) -> None:
        self._engine = engine
        self._prefix = f"SERVE_REPLICA::{engine.app_name}#{engine.deployment_name}#"

    async def choose(self, plan: Handed | Refused | None) -> str:
        """The planned replica; else, by Serve's own request router, the branch's or a free one.

        Raises TimeoutError, RayError or RayServeException when there is none.
        """
        handed = plan if isinstance(plan, Handed) else None
        if handed is not None and handed.replica is not None:
            return self._prefix + handed.replica
        call = CallPlan(branch=handed.branch) if handed is not None else CallPlan()
        async with asyncio.timeout(CHOOSE_S):
            choosing = self._engine.choose_replica(_reserve=False, **{PLAN_KWARG: call})
            async with choosing as selection:
                return self._prefix + selection.replica_id


def route_api(service: Service, choose: Any) -> FastAPI:
    """`POST /internal/route` as HAProxy asks it. choose: as `Replicas.choose`."""
    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @api.post("/internal/route")
    async def route(request: Request) -> Response:
        data = await request.body()
        plan = None
        if CUT not in request.headers:
            plan = await planned(service, data, request.headers.get(AUTHORIZATION))
        try:
            replica = await choose(plan)
        except (TimeoutError, RayError, RayServeException) as error:
            _log.warning("no engine replica to send a request to: %s", error)
            return JSONResponse({"detail": "no engine replica runs"}, 503)
        headers = {} if plan is None else {HEADER: plan.header()}
        return JSONResponse({"replica_id": replica, "request_headers": headers})

    @api.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    return api


async def planned(
    service: Service, data: bytes, authorization: str | None
) -> Handed | Refused | None:
    """The plan of a generation, or why it gets none; None for what only the replica can tell.

    The path does not come here: other requests are planned where they look like generations, and
    their replica takes that back.
    """
    began = time.perf_counter()
    if service.config.reuse == "plain" or not data:
        return None
    try:
        tenant = service.admit(authorization)
        body = read_json(data)
        kind: type[ChatRequest] | type[CompletionRequest]
        kind = ChatRequest if "messages" in body else CompletionRequest
        asked = parse(kind, body, service.config)
        prepared, step = await service.planning.plan(asked, tenant, service.config.reuse, _as_it_is)
    except CpRayError as error:
        status, headers, answer = to_http(error)
        return Refused(status, headers, answer)
    except Exception:  # noqa: BLE001 - the boundary: the replica will meet the same, and say so
        _log.exception("a request could not be planned")
        return None
    return _handed(prepared.plan, step, began)


def _handed(plan: PlanRequest, step: Step | None, began: float) -> Handed | None:
    if step is None:
        return None
    return hand(plan, step, round(1000 * (time.perf_counter() - began), 3))


def _as_it_is(plan: PlanRequest) -> PlanRequest:
    return plan


class _Nowhere:
    """A Dispatcher where nothing is dispatched: HAProxy sends requests to their replicas."""

    def stream(self, *call: object) -> AsyncIterator[Delivery]:
        """Never called."""
        raise InvariantError(f"dispatched by a Router of the direct data plane: {call}")
