"""The router without HTTP: a valid request becomes a running call (design.md section 3)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from cp_ray.config import AppConfig
from cp_ray.core.types import Arrived
from cp_ray.errors import CpRayError, EngineUnavailable, InvalidRequest
from cp_ray.router.admission import Admission
from cp_ray.router.assembly import Finished, Prepared, Request, Reuse
from cp_ray.router.auth import Authenticator, Tenant
from cp_ray.router.call import Call
from cp_ray.router.planning import Planning, size_of
from cp_ray.router.ports import Dispatcher, FetchInfo, Planner, RecordStore
from cp_ray.router.quotas import Quotas
from cp_ray.router.taken import Taken
from cp_ray.router.tokenizer import PromptTokenizer
from cp_ray.router.watch import Observer, Watch
from cp_ray.workers.engine import EngineInfo, EngineRequest

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
        places: int | None = None,
        ingresses: int | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """sent: is told every request that was planned, before it goes out.

        places: requests without a first token at a time; default: all that the engine replicas
        have. ingresses: that take scores; default: as configured. quotas: other than theirs.
        """
        self.config = config
        self.auth = Authenticator(config)
        self.quotas = quotas or Quotas(config)
        self.planner = planner
        self.planning = Planning(
            config,
            self.auth,
            tokenizer=tokenizer,
            planner=planner,
            store=store,
            quotas=self.quotas,
            new_id=new_id,
            context_length=self._context_length,
            ingresses=ingresses,
        )
        self.clock = clock
        self.observer = observer or Observer()
        self._sent = sent
        self._dispatcher = dispatcher
        self._fetch_info = fetch_info
        self._info: EngineInfo | None = None
        self._asking: asyncio.Future[EngineInfo] | None = None
        if places is None:
            places = config.most_replicas * config.max_ongoing_requests
        self._admission = Admission(places, config.max_queued_requests, self.observer.waiting)

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

    def admit(self, authorization: str | None, *, counted: bool = False) -> Tenant:
        """Who asks. counted: by a Router before us, so not again.

        Raises Unauthorized, or Overloaded (429).
        """
        tenant = self.auth.tenant(authorization)
        if not counted:
            self.quotas.request(tenant.name)
        return tenant

    async def call(
        self,
        request: Request,
        tenant: Tenant,
        reuse: Reuse,
        traceparent: str | None = None,
        began: float | None = None,
        *,
        taken: Taken | None = None,
    ) -> Call:
        """Prepare, plan, dispatch and wait for the first token.

        began: when its body was read, by `time.perf_counter`. taken: what came with it.
        Raises InvalidRequest, Overloaded, EngineUnavailable or EngineError. The caller must close
        the call. Cancelling frees what was planned.
        """
        leave = self.quotas.enter(tenant.name)
        watch = self.observer.begin(tenant.name, traceparent, began)
        try:
            call = await self._begin(request, tenant, reuse, watch, taken or Taken())
        except BaseException as error:
            watch.failed(error)
            leave()
            raise
        call.on_close = leave
        return call

    async def _begin(
        self, request: Request, tenant: Tenant, reuse: Reuse, watch: Watch, taken: Taken
    ) -> Call:
        async with self._admission.place(tenant.name, size_of(request)):
            if (handed := taken.take()) is not None:
                watch.routed(handed.routed_ms)
                prepared, step = await self.planning.follow(handed, request, tenant, reuse)
            else:
                asking = watch.planning
                prepared, step = await self.planning.plan(request, tenant, reuse, asking)
                if step is not None and self.config.data_plane == "direct":
                    self.planner.feedback(Arrived(step.request_id))  # planned where it is served
            watch.planned(prepared.plan, step, len(prepared.repeated))
            # No await until the request is on its way: the window's order must hold.
            order = step.context if step is not None else prepared.plan.context
            finished = self.planning.assembler.finish(prepared, order)
            engine_request = EngineRequest(
                prepared.plan.request_id,
                finished.prompt.tobytes(),
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

    async def _context_length(self) -> int | None:
        if self._info is None and self.config.max_model_len is not None:
            return self.config.max_model_len
        return (await self.info()).max_model_len

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
            self.planning.conversations.save,
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
