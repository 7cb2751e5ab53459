"""The router without HTTP: a valid request becomes a running call (design.md section 3)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from cp_ray.config import AppConfig
from cp_ray.core.types import RequestId
from cp_ray.errors import CpRayError, EngineUnavailable, InvalidRequest
from cp_ray.router.admission import Admission
from cp_ray.router.api import ChatRequest
from cp_ray.router.assembly import Assembler, Finished, Limits, Prepared, Request, Reuse
from cp_ray.router.auth import Authenticator, Tenant
from cp_ray.router.call import Call
from cp_ray.router.conversation import Conversations, Turn
from cp_ray.router.guardrails import Guardrails
from cp_ray.router.identity import identified
from cp_ray.router.ports import Dispatcher, FetchInfo, Planner, RecordStore
from cp_ray.router.quotas import Quotas
from cp_ray.router.tokenizer import PromptTokenizer
from cp_ray.router.watch import Observer, Watch
from cp_ray.router.window import Window
from cp_ray.workers.engine import EngineInfo, EngineRequest

_THREAD_BYTES = 1 << 16
"""Texts above this are tokenized on a thread, so that other streams go on meanwhile."""
_READY_S = 5.0
_LEVELS: tuple[Reuse, ...] = ("plain", "route", "full")


def new_id() -> str:
    """A request's name, unique in the world."""
    return uuid.uuid4().hex


class Service:
    """Everything one ingress replica needs to answer; the shells it talks to are injected."""

    def __init__(
        self,
        config: AppConfig,
        *,
        tokenizer: PromptTokenizer,
        planner: Planner,
        dispatcher: Dispatcher,
        store: RecordStore | None,
        fetch_info: FetchInfo,
        new_id: Callable[[], str] = new_id,
        clock: Callable[[], float] = time.time,
        observer: Observer | None = None,
        sent: Callable[[EngineRequest], None] | None = None,
    ) -> None:
        """sent: is told every request that was planned, before it goes out."""
        self.config = config
        self.auth = Authenticator(config)
        self.quotas = Quotas(config)
        self.assembler = Assembler(tokenizer, config.public_model_name, _limits(config))
        self.planner = planner
        self.conversations = Conversations(
            store, config.conversation_ttl_s, config.conversation_max_bytes
        )
        self.guardrails = Guardrails(store, config)
        self.new_id = new_id
        self.clock = clock
        self.observer = observer or Observer()
        self._sent = sent
        self._dispatcher = dispatcher
        self._fetch_info = fetch_info
        self._info: EngineInfo | None = None
        self._asking: asyncio.Future[EngineInfo] | None = None
        running = config.most_replicas * config.max_ongoing_requests
        self._admission = Admission(running, config.max_queued_requests, self.observer.waiting)
        self._window = Window(
            planner, max_size=config.window_max, max_wait_s=config.window_ms / 1000
        )

    def reuse(self, asked: str | None) -> Reuse:
        """The configured level, or a lower one that the request asks for."""
        if asked is None:
            return self.config.reuse
        if asked not in _LEVELS:
            raise InvalidRequest(
                f"x-cp-ray-reuse: {asked!r} is no level: send plain, route or full",
                param="x-cp-ray-reuse",
            )
        return min(asked, self.config.reuse, key=_LEVELS.index)

    async def info(self) -> EngineInfo:
        """Facts of the engine, asked once; raises EngineUnavailable while there is none."""
        if self._info is None:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self._fetch_info())
            self._info = await asyncio.shield(self._asking)
        return self._info

    async def ready(self) -> None:
        """Return when a replica answers now; raises EngineUnavailable."""
        try:
            async with asyncio.timeout(_READY_S):
                await self._fetch_info()
        except TimeoutError:
            raise EngineUnavailable(
                "no engine replica answers: wait, or see `serve status`"
            ) from None

    def admit(self, authorization: str | None) -> Tenant:
        """Who asks; counts the request. Raises Unauthorized, or Overloaded (429)."""
        tenant = self.auth.tenant(authorization)
        self.quotas.request(tenant.name)
        return tenant

    async def call(
        self,
        request: Request,
        tenant: Tenant,
        reuse: Reuse,
        traceparent: str | None = None,
        began: float | None = None,
    ) -> Call:
        """Prepare, plan, dispatch and wait for the first token.

        began: when its body was read, by `time.perf_counter`.
        Raises InvalidRequest, Overloaded, EngineUnavailable or EngineError. The caller must close
        the call. Cancelling frees what was planned.
        """
        leave = self.quotas.enter(tenant.name)
        watch = self.observer.begin(tenant.name, traceparent, began)
        try:
            call = await self._begin(request, tenant, reuse, watch)
        except BaseException as error:
            watch.failed(error)
            leave()
            raise
        call.on_close = leave
        return call

    async def _begin(self, request: Request, tenant: Tenant, reuse: Reuse, watch: Watch) -> Call:
        async with self._admission.place(tenant.name, _size(request)):
            prepared = await self.prepare(request, tenant, reuse)
            spent = prepared.prompt_tokens + (request.output_limit or 0)
            self.quotas.tokens(tenant.name, spent)
            if prepared.plan.movable:
                route = Guardrails.route(tenant.name, request.agent)
                if not await self.guardrails.reorders(route, prepared.plan.request_id):
                    prepared = _in_place(prepared)
            step = None
            if reuse != "plain":
                step = (await self._window.plan(watch.planning(prepared.plan))).step
            watch.planned(prepared.plan, step, len(prepared.repeated))
            # No await until the request is on its way: the window's order must hold.
            order = step.context if step is not None else prepared.plan.context
            finished = self.assembler.finish(prepared, order)
            engine_request = EngineRequest(
                prepared.plan.request_id,
                finished.prompt,
                request.sampling(self._output_tokens(request, len(finished.prompt))),
                self.auth.view(tenant, request).cache_salt,
                watch.sending(),
                step.estimated_ttft_s if step is not None else 0.0,
                step.estimated_prefill_s if step is not None else 0.0,
            )
            if step is not None and self._sent is not None:
                self._sent(engine_request)
            call = Call(
                engine_request,
                prepared,
                step,
                planner=self.planner,
                dispatcher=self._dispatcher,
                save=self._saver(request, tenant, prepared, finished),
                watch=watch,
            )
            try:
                await call.begin()
            except BaseException:
                await call.aclose()
                raise
            return call

    async def prepare(self, request: Request, tenant: Tenant, reuse: Reuse) -> Prepared:
        """Read the conversation, assemble, and check that the prompt fits the model."""
        turns: tuple[Turn, ...] | None = ()
        if request.conversation is not None:
            links = self.assembler.links(request)
            turns = await self.conversations.load(tenant.name, request.conversation, links)
        work = partial(
            self.assembler.prepare,
            request,
            self.auth.view(tenant, request),
            RequestId(self.new_id()),
            reuse=reuse,
            turns=turns,
        )
        large = _size(request) + sum(turn.size for turn in turns or ()) > _THREAD_BYTES
        prepared = await asyncio.to_thread(work) if large else work()
        several = len(self.config.api_keys) > 1
        plan = identified(prepared, request, tenant, several_tenants=several)
        prepared = msgspec.structs.replace(prepared, plan=plan)
        return self._fit(prepared, request, await self._context_length())

    async def _context_length(self) -> int | None:
        if self._info is None and self.config.max_model_len is not None:
            return self.config.max_model_len
        return (await self.info()).max_model_len

    def _fit(self, prepared: Prepared, request: Request, limit: int | None) -> Prepared:
        if limit is None:
            return prepared
        output = request.output_limit or 1
        need = prepared.prompt_tokens + output
        if need > limit:
            field = "documents" if prepared.blocks else _text_field(request)
            raise InvalidRequest(
                f"{field}: this model's context length is {limit} tokens, and the request needs "
                f"{need} ({prepared.prompt_tokens} of prompt, {output} of output): "
                "send fewer or shorter documents, or ask for fewer output tokens",
                param=field,
                code="context_length_exceeded",
            )
        if need + prepared.annotation_tokens > limit:
            # It fits in the order given, which needs no annotation.
            return _in_place(prepared)
        return prepared

    def _output_tokens(self, request: Request, prompt_tokens: int) -> int:
        if request.output_limit is not None:
            return min(request.output_limit, self.config.max_output_tokens)
        limit = self._info.max_model_len if self._info is not None else self.config.max_model_len
        room = self.config.max_output_tokens if limit is None else limit - prompt_tokens
        return max(1, min(room, self.config.max_output_tokens))

    def _saver(
        self, request: Request, tenant: Tenant, prepared: Prepared, finished: Finished
    ) -> Any:
        conversation, kept = request.conversation, prepared.kept
        if conversation is None or kept is None:
            return None
        turn = finished.turn(prepared.plan.request_id, kept)
        return partial(
            self.conversations.save,
            tenant.name,
            conversation,
            kept.link,
            turn,
            plain=kept.plain,
            earlier_bytes=kept.earlier_bytes,
        )


def known_error(error: BaseException) -> CpRayError | None:
    """The error of our own that a foreign one wraps or follows from, if there is one."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, CpRayError):
            return seen
        seen = getattr(seen, "cause", None) or seen.__cause__
    return None


def _in_place(prepared: Prepared) -> Prepared:
    """With its blocks in the order given."""
    fixed = msgspec.structs.replace(prepared.plan, movable=False)
    return msgspec.structs.replace(prepared, plan=fixed)


def _limits(config: AppConfig) -> Limits:
    return Limits(
        partial_overlap_tokens=config.partial_overlap_tokens,
        lift=config.lift_documents,
        most=config.max_documents,
        longest=config.max_document_bytes,
    )


def _size(request: Request) -> int:
    """Characters that may have to be tokenized."""
    documents = sum(len(document.text) for document in request.documents)
    if isinstance(request, ChatRequest):
        return documents + sum(len(message.content) for message in request.messages)
    return documents + len(request.prompt)


def _text_field(request: Request) -> Literal["messages", "prompt"]:
    return "messages" if isinstance(request, ChatRequest) else "prompt"
