"""The HTTP of design.md section 6 as an ASGI application around a `Service`."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import anyio
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cp_ray.errors import CpRayError, EngineError, InvalidRequest, InvariantError, to_http
from cp_ray.router.api import ChatRequest, CompletionRequest
from cp_ray.router.call import Call
from cp_ray.router.connection import ClientGone, while_connected
from cp_ray.router.context_plan import context_plan
from cp_ray.router.dispatch import REPLICA_LOST
from cp_ray.router.handed import Refused, Seal
from cp_ray.router.limits import parse, parse_score, read_json, too_large
from cp_ray.router.openapi import openapi
from cp_ray.router.responses import DONE, Format, Json, error_event, event
from cp_ray.router.service import Service, known_error
from cp_ray.router.taken import TakesBack, taken_of

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
_log = logging.getLogger("ray.serve")
_MAX_ID = 128
WHOLE_TRIES = 3
"""How often an answer that is not streamed begins anew when its replica is lost."""


def build_api(
    service: Service, lifespan: Lifespan | None = None, *, seal: Seal | None = None
) -> FastAPI:
    """The application; `lifespan` starts and stops what `service` was given.

    seal: of the Routers that requests bring their plans from; None = they bring none.
    """
    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    api.state.named = seal is not None
    if seal is not None:
        api.add_middleware(TakesBack, seal=seal, planner=service.planner)

    @api.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _answer(request, lambda: _generate(service, request, ChatRequest))

    @api.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _answer(request, lambda: _generate(service, request, CompletionRequest))

    @api.post("/v1/context/plan")
    async def plan(request: Request) -> Response:
        async def work() -> Response:
            taken = taken_of(request)
            if taken.refused is not None:
                return _refused(taken.refused)
            tenant = service.admit(request.headers.get("authorization"), counted=taken.counted)
            value = read_json(await _body(request, service.config.max_body_bytes))
            reuse = service.reuse(request.headers.get("x-cp-ray-reuse"))
            return JSONResponse(await context_plan(service, value, tenant, reuse))

        return await _answer(request, work)

    @api.post("/v1/score")
    async def score(request: Request) -> Response:
        async def work() -> Response:
            tenant = service.auth.tenant(request.headers.get("authorization"))
            value = read_json(await _body(request, service.config.max_body_bytes))
            given = parse_score(value)
            known = await service.planning.guardrails.score(
                tenant.name, given.request_id, given.score
            )
            return JSONResponse(known)

        return await _answer(request, work)

    @api.get("/v1/models")
    async def models(request: Request) -> Response:
        async def work() -> Response:
            service.auth.tenant(request.headers.get("authorization"))
            info = await service.info()
            model = {
                "id": service.config.public_model_name,
                "object": "model",
                "created": 0,
                "owned_by": "cp_ray",
                "max_model_len": info.max_model_len,
                "simulated": info.simulated,
            }
            if info.simulated:
                model["timing"] = info.timing
            return JSONResponse({"object": "list", "data": [model]})

        return await _answer(request, work)

    @api.get("/openapi.json")
    async def document(request: Request) -> Response:
        fleet = any(route.path == "/fleet" for route in api.routes if isinstance(route, Route))
        prefix: str = request.scope.get("root_path", "")
        servers = [{"url": prefix or "/"}]
        return JSONResponse({"servers": servers, **openapi(service.config, fleet=fleet)})

    @api.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @api.get("/readyz")
    async def readyz(request: Request) -> Response:
        async def work() -> Response:
            await service.ready()
            return JSONResponse({"status": "ready"})

        return await _answer(request, work)

    @api.exception_handler(HTTPException)
    async def unknown_route(request: Request, error: HTTPException) -> Response:
        text = f"{request.method} {request.url.path}: {error.detail}"
        response = _failed(InvalidRequest(text, status=error.status_code), request)
        response.headers.update(error.headers or {})  # 405 names the methods that there are
        return response

    return api


async def _answer(request: Request, work: Callable[[], Awaitable[Response]]) -> Response:
    """Run one request; every error leaves in OpenAI's shape and says nothing of our insides."""
    try:
        response = await work()
    except (ClientGone, ClientDisconnect):
        return Response(status_code=499)
    except CpRayError as error:
        return _failed(error, request)
    except Exception as error:  # noqa: BLE001 - the boundary: what is unknown becomes a 500
        return _failed(_own_fault(error), request)
    response.headers.update(_name(request))
    return response


def _own_fault(error: Exception) -> CpRayError:
    known = known_error(error)
    if known is not None:
        return known
    _log.exception("request failed", exc_info=error)
    return InvariantError("internal error: the router's log has the details", code="internal_error")


def _failed(error: CpRayError, request: Request) -> Response:
    status, headers, body = to_http(error)
    return JSONResponse(body, status, {**headers, **_name(request)})


def _refused(refused: Refused) -> Response:
    return JSONResponse(refused.body, refused.status, refused.headers)


def _name(request: Request) -> dict[str, str]:
    """The header with the request's id, unless Serve's own server puts it into the answer."""
    return {} if request.app.state.named else {"x-request-id": _request_id(request)}


def _request_id(request: Request) -> str:
    """The client's id of the request when it is a plain one, else our own; for logs only."""
    given: str = request.headers.get("x-request-id", "")
    if 0 < len(given) <= _MAX_ID and given.isascii() and given.isprintable():
        return given
    return getattr(request.state, "request_id", "")


async def _generate(
    service: Service, request: Request, kind: type[ChatRequest] | type[CompletionRequest]
) -> Response:
    taken = taken_of(request)
    if taken.refused is not None:
        return _refused(taken.refused)
    tenant = service.admit(request.headers.get("authorization"), counted=taken.counted)
    data = await _body(request, service.config.max_body_bytes)
    began: float | None = time.perf_counter()
    body = read_json(data)
    asked: ChatRequest | CompletionRequest = parse(kind, body, service.config)
    reuse = service.reuse(request.headers.get("x-cp-ray-reuse"))
    info = await service.info()
    chat = kind is ChatRequest
    explain = request.headers.get("x-cp-ray-explain", "0").lower() in ("1", "true")

    async def begin() -> tuple[Call, Format]:
        nonlocal began
        trace = request.headers.get("traceparent")
        working = service.call(asked, tenant, reuse, trace, began, taken=taken)
        began = None  # another try begins when it begins
        call = await while_connected(request, working)
        request.state.request_id = call.request.request_id
        return call, Format(
            chat=chat,
            id=f"{'chatcmpl' if chat else 'cmpl'}-{call.request.request_id}",
            created=int(service.clock()),
            model=service.config.public_model_name,
            fingerprint=f"cp_ray-{info.engine}",
            usage_chunk=asked.include_usage,
        )

    if asked.stream:
        return _EventStream(*await begin(), explain=explain)
    # The client has seen nothing of an answer that is not streamed: it may begin anew.
    tries = 0
    while True:
        call, form = await begin()
        tries += 1
        try:
            return JSONResponse(await while_connected(request, _whole(call, form, explain)))
        except EngineError as error:
            if error.code != REPLICA_LOST or tries == WHOLE_TRIES:
                raise
        finally:
            await call.aclose()


async def _whole(call: Call, form: Format, explain: bool) -> Json:
    texts, last = [], None
    async for chunk in call.chunks():
        texts.append(chunk.text)
        last = chunk
    if last is None:
        raise InvariantError("internal error: an answer without a chunk")
    answer = form.whole("".join(texts), last)
    return {**answer, "cp_ray": call.explain()} if explain else answer


async def _events(call: Call, form: Format, explain: bool) -> AsyncGenerator[bytes, None]:
    try:
        for value in form.opening():
            yield event(value)
        async for chunk in call.chunks():
            if chunk.text:
                yield event(form.text(chunk.text))
            if chunk.finish_reason is not None:
                *most, last = form.closing(chunk)
                for value in most:
                    yield event(value)
                yield event({**last, "cp_ray": call.explain()} if explain else last)
        yield DONE
    except CpRayError as error:
        yield error_event(error)
    except Exception as error:  # noqa: BLE001 - as in _answer, after the status was sent
        yield error_event(_own_fault(error))


class _EventStream(StreamingResponse):
    """Closes its call however it ends, even when the client left before the first event."""

    def __init__(self, call: Call, form: Format, *, explain: bool) -> None:
        self._events = _events(call, form, explain)
        super().__init__(
            self._events,
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._events.aclose()
                await self._call.aclose()


async def _body(request: Request, limit: int) -> bytes:
    """Read the body, at most `limit` bytes of it; raises InvalidRequest 413."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large(limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)
