"""POST /v1/context/plan: order and annotate without generating, for engines that are not ours.

Nothing is dispatched, so what the plan reserved is freed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from cp_ray.config import AppConfig
from cp_ray.core.scheduling import with_positions
from cp_ray.core.types import PlanRequest, RequestId, Settled, Step
from cp_ray.errors import InvalidRequest
from cp_ray.router.api import ChatRequest
from cp_ray.router.assembly import Finished, Prepared, Reuse
from cp_ray.router.auth import Tenant
from cp_ray.router.limits import parse
from cp_ray.router.service import Service
from cp_ray.router.window import passthrough, plan_or_pass

MAX_BATCH = 1024


async def context_plan(
    service: Service, value: dict[str, Any], tenant: Tenant, reuse: Reuse
) -> dict[str, Any]:
    """Plan one chat request, or {"requests": [...]} together.

    One: {"documents", "annotation", "messages", "group", "position"}. Many: {"plans": [...],
    "order": positions in `requests` in the order of sending}. Raises InvalidRequest.
    """
    if "requests" not in value:
        request = parse(ChatRequest, value, service.config)
        plans, _ = await _plan(service, [request], tenant, reuse)
        return plans[0]
    requests = _batch(value, service.config)
    plans, order = await _plan(service, requests, tenant, reuse)
    return {"plans": plans, "order": order}


def _batch(value: dict[str, Any], config: AppConfig) -> list[ChatRequest]:
    requests = value["requests"]
    if not isinstance(requests, list) or not requests or len(value) > 1:
        raise InvalidRequest(
            'requests: send {"requests": [...]} with at least one chat completion body, '
            "and no other field",
            param="requests",
        )
    if len(requests) > MAX_BATCH:
        raise InvalidRequest(
            f"requests: {len(requests)} are more than {MAX_BATCH}: split the batch",
            param="requests",
            status=422,
        )
    parsed = []
    for index, item in enumerate(requests):
        if not isinstance(item, dict):
            raise InvalidRequest(
                f"requests.{index}: is no object: send a chat completion body",
                param=f"requests.{index}",
            )
        try:
            parsed.append(parse(ChatRequest, item, config))
        except InvalidRequest as error:
            raise InvalidRequest(
                f"requests.{index}.{error.message}",
                param=f"requests.{index}.{error.param}",
                code=error.code,
                status=error.status,
            ) from error
    return parsed


async def _plan(
    service: Service, requests: Sequence[ChatRequest], tenant: Tenant, reuse: Reuse
) -> tuple[list[dict[str, Any]], list[int]]:
    prepared = list(
        await asyncio.gather(
            *(service.planning.prepare(request, tenant, reuse) for request in requests)
        )
    )
    steps = await _steps(service, [item.plan for item in prepared], reuse)
    index_of = {item.plan.request_id: index for index, item in enumerate(prepared)}
    plans: list[dict[str, Any]] = [{} for _ in prepared]
    order = []
    for step, position in with_positions(steps):
        index = index_of[step.request_id]
        item = prepared[index]
        finished = service.planning.assembler.finish(item, step.context)
        plans[index] = _shown(item, step, position, finished)
        order.append(index)
    return plans, order


async def _steps(service: Service, requests: list[PlanRequest], reuse: Reuse) -> list[Step]:
    if reuse == "plain":
        return [passthrough(request) for request in requests]
    steps = await plan_or_pass(service.planner, requests)
    for request in requests:
        service.planner.feedback(Settled(RequestId(request.request_id), 0, ok=False))
    return steps


def _shown(prepared: Prepared, step: Step, position: int, finished: Finished) -> dict[str, Any]:
    request = prepared.request
    given = request.messages if isinstance(request, ChatRequest) else ()
    messages = [message.model_dump(exclude_none=True) for message in given]
    users = [index for index, message in enumerate(given) if message.role == "user"]
    for index, turn in zip(users, prepared.earlier, strict=False):
        messages[index]["content"] = "".join(turn.pieces)
    messages[users[-1]]["content"] = "".join(finished.user)
    places = [origin.position for block in step.context for origin in prepared.origins[block]]
    ordered = [request.documents[place] for place in places if place is not None]
    return {
        "documents": [document.model_dump(exclude_none=True) for document in ordered],
        "annotation": finished.annotation,
        "messages": messages,
        "group": step.branch,
        "position": position,
    }
