"""A bare Serve application: ingress, handle, simulated engine. What cp_ray's cost is compared to.

The same HTTP as cp_ray's chat route, the same engine, tokenizer and batching of chunks, and nothing
else: no checks, no conversations, no index, no Redis. The engine's events go nowhere.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Request
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig
from starlette.responses import Response, StreamingResponse

from cp_ray.config import AppConfig
from cp_ray.core.types import Eviction, ReplicaId, RequestId
from cp_ray.router.responses import DONE, Format, event
from cp_ray.router.tokenizer import Piece, WordTokenizer
from cp_ray.store import wire
from cp_ray.workers.engine import Delivery, EngineRequest, Sampling
from cp_ray.workers.replica import deliveries
from cp_ray.workers.simulated_engine import SimulatedEngine


class Nobody:
    """Hears what the engine's cache lost."""

    def evicted(self, evictions: list[Eviction]) -> None:
        """See CacheListener."""

    def new_epoch(self) -> None:
        """See CacheListener."""


class BareEngine:
    """The simulated engine under Serve."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]  # Serve awaits it
        self._replica = ReplicaId(serve.get_replica_context().replica_id.unique_id)
        self._engine = SimulatedEngine(AppConfig.model_validate_json(config_json))
        await self._engine.start(Nobody())

    async def generate(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        """As EngineReplica's."""
        request = wire.decode(payload, EngineRequest)
        async with aclosing(deliveries(self._replica, self._engine.generate(request))) as stream:
            async for delivery in stream:
                yield wire.encode(delivery)


@serve.ingress()
class BareRouter:
    """OpenAI's chat route as one writes it on Serve by hand."""

    def __init__(self, config_json: str, engine: DeploymentHandle) -> None:
        config = AppConfig.model_validate_json(config_json)
        self._model = config.public_model_name
        # A hand-written ingress tokenizes every prompt whole: it has no pieces to remember.
        self._tokenizer = WordTokenizer(cached_tokens=0)
        self._engine = engine.options(stream=True)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

        @api.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            return await self._chat(json.loads(await request.body()))

        @api.get("/readyz")
        async def readyz() -> Response:
            return Response()

        return api

    async def _chat(self, body: dict[str, Any]) -> Response:
        texts = [f"{text}\n\n" for text in body["documents"]]
        texts.append(body["messages"][-1]["content"])
        prompt = self._tokenizer.tokens([Piece("".join(texts))])
        name = RequestId(uuid.uuid4().hex)
        sampling = Sampling(max_tokens=body["max_tokens"], temperature=body["temperature"])
        payload = wire.encode(EngineRequest(name, prompt.tobytes(), sampling))
        coming = aiter(self._engine.generate.remote(payload))
        first = await anext(coming)  # until then an error still has a status code
        form = Format(
            chat=True,
            id=f"chatcmpl-{name}",
            created=int(time.time()),
            model=self._model,
            fingerprint="bare",
        )
        return StreamingResponse(_events(first, coming, form), media_type="text/event-stream")


async def _events(first: bytes, coming: Any, form: Format) -> AsyncGenerator[bytes, None]:
    for value in form.opening():
        yield event(value)
    data: bytes | None = first
    while data is not None:
        for chunk in wire.decode(data, Delivery).chunks:
            if chunk.text:
                yield event(form.text(chunk.text))
            if chunk.finish_reason is not None:
                for value in form.closing(chunk):
                    yield event(value)
        data = await anext(coming, None)
    yield DONE


def bare_app(config: AppConfig) -> serve.Application:
    """With as many engines and the same limits as cp_ray's with this configuration."""
    config_json = config.to_json()
    engine = serve.deployment(BareEngine).options(
        name="Engine",
        num_replicas=config.replicas,
        max_ongoing_requests=config.max_ongoing_requests,
        ray_actor_options={"num_cpus": config.cpus_per_replica},
        logging_config=LoggingConfig(enable_access_log=False),
    )
    router = serve.deployment(BareRouter).options(
        name="Router",
        max_ongoing_requests=2 * config.replicas * config.max_ongoing_requests,
        ray_actor_options={"num_cpus": 0.1},
    )
    bound: serve.Application = router.bind(config_json, engine.bind(config_json))
    return bound
