"""From a valid request to its plan: conversation read, prompt cut and counted, the index asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

import msgspec

from cp_ray.config import AppConfig
from cp_ray.core.types import PlanRequest, RequestId, Settled, Step
from cp_ray.errors import InvalidRequest
from cp_ray.router.api import ChatRequest
from cp_ray.router.assembly import Assembler, Limits, Prepared, Request, Reuse
from cp_ray.router.auth import Authenticator, Tenant
from cp_ray.router.conversation import Conversations, Turn
from cp_ray.router.guardrails import Guardrails
from cp_ray.router.handed import Handed
from cp_ray.router.identity import identified
from cp_ray.router.ports import Planner, RecordStore
from cp_ray.router.quotas import Quotas
from cp_ray.router.tokenizer import PromptTokenizer
from cp_ray.router.window import Window, passthrough

_THREAD_BYTES = 1 << 16
"""Texts above this are tokenized on a thread, so that other streams go on meanwhile."""
Asking = Callable[[PlanRequest], PlanRequest]
"""Is told each request that asks the index, and gives it as the index shall get it."""


class Planning:
    """Owner of the scheduling window and of what a prompt is made from.

    new_id: a name for each request. context_length: of the model; None where it is unknown.
    ingresses: as `Service` has it.
    """

    def __init__(
        self,
        config: AppConfig,
        auth: Authenticator,
        *,
        tokenizer: PromptTokenizer,
        planner: Planner,
        store: RecordStore | None,
        quotas: Quotas,
        new_id: Callable[[], str],
        context_length: Callable[[], Awaitable[int | None]],
        ingresses: int | None = None,
    ) -> None:
        self.assembler = Assembler(tokenizer, config.public_model_name, _limits(config))
        self.conversations = Conversations(
            store, config.conversation_ttl_s, config.conversation_max_bytes
        )
        self.guardrails = Guardrails(store, config, ingresses=ingresses)
        self.quotas = quotas
        self._auth = auth
        self._new_id = new_id
        self._context_length = context_length
        self._several = len(config.api_keys) > 1
        self._planner = planner
        self._window = Window(
            planner, max_size=config.window_max, max_wait_s=config.window_ms / 1000
        )

    async def plan(
        self, request: Request, tenant: Tenant, reuse: Reuse, asking: Asking
    ) -> tuple[Prepared, Step | None]:
        """The prompt's parts and the index's step; None with reuse plain.

        When this returns the step is the window's turn: no await until the request is on its way.
        Raises InvalidRequest, or Overloaded (429) beyond the tenant's tokens.
        """
        prepared = await self.prepare(request, tenant, reuse)
        self.quotas.tokens(tenant.name, prepared.prompt_tokens + (request.output_limit or 0))
        if prepared.plan.movable:
            route = Guardrails.route(tenant.name, request.agent)
            if not await self.guardrails.reorders(route, prepared.plan.request_id):
                prepared = in_place(prepared)
        if reuse == "plain":
            return prepared, None
        return prepared, (await self._window.plan(asking(prepared.plan))).step

    async def follow(
        self, handed: Handed, request: Request, tenant: Tenant, reuse: Reuse
    ) -> tuple[Prepared, Step | None]:
        """The same, planned by a Router elsewhere, which has counted the tokens.

        Where the plan is of another prompt (the conversation's record has changed since) the order
        is the client's, and the index is told to forget what it planned.
        """
        try:
            prepared = await self.prepare(request, tenant, reuse, handed.request_id)
        except BaseException:
            self._planner.feedback(Settled(handed.request_id, 0, ok=False))
            raise
        step = handed.step(prepared.plan) if reuse != "plain" else None
        if step is not None:
            return prepared, step
        self._planner.feedback(Settled(handed.request_id, 0, ok=False))
        renamed = msgspec.structs.replace(prepared.plan, request_id=RequestId(self._new_id()))
        prepared = in_place(msgspec.structs.replace(prepared, plan=renamed))
        return prepared, None if reuse == "plain" else passthrough(prepared.plan)

    async def prepare(
        self,
        request: Request,
        tenant: Tenant,
        reuse: Reuse,
        name: RequestId | None = None,
    ) -> Prepared:
        """Read the conversation, assemble, and check that the prompt fits the model."""
        turns: tuple[Turn, ...] | None = ()
        if request.conversation is not None:
            links = self.assembler.links(request)
            turns = await self.conversations.load(tenant.name, request.conversation, links)
        work = partial(
            self.assembler.prepare,
            request,
            self._auth.view(tenant, request),
            name or RequestId(self._new_id()),
            reuse=reuse,
            turns=turns,
        )
        large = size_of(request) + sum(turn.size for turn in turns or ()) > _THREAD_BYTES
        prepared = await asyncio.to_thread(work) if large else work()
        plan = identified(prepared, request, tenant, several_tenants=self._several)
        prepared = msgspec.structs.replace(prepared, plan=plan)
        return _fit(prepared, request, await self._context_length())


def size_of(request: Request) -> int:
    """Characters that may have to be tokenized."""
    documents = sum(len(document.text) for document in request.documents)
    if isinstance(request, ChatRequest):
        return documents + sum(len(message.content) for message in request.messages)
    return documents + len(request.prompt)


def in_place(prepared: Prepared) -> Prepared:
    """With its blocks in the order given."""
    fixed = msgspec.structs.replace(prepared.plan, movable=False)
    return msgspec.structs.replace(prepared, plan=fixed)


def _fit(prepared: Prepared, request: Request, limit: int | None) -> Prepared:
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
        return in_place(prepared)
    return prepared


def _limits(config: AppConfig) -> Limits:
    return Limits(
        partial_overlap_tokens=config.partial_overlap_tokens,
        lift=config.lift_documents,
        most=config.max_documents,
        longest=config.max_document_bytes,
    )


def _text_field(request: Request) -> Literal["messages", "prompt"]:
    return "messages" if isinstance(request, ChatRequest) else "prompt"
