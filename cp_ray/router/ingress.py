"""Router: the ingress deployment. Wires the HTTP application to Ray, the index and Redis."""

from __future__ import annotations

import asyncio
import gc

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cp_ray.allocator import keep_trimmed
from cp_ray.config import AppConfig
from cp_ray.errors import EngineUnavailable
from cp_ray.index_actor.client import IndexClient
from cp_ray.index_actor.teller import Teller
from cp_ray.router.dispatch import Dispatcher
from cp_ray.router.endpoints import build_api
from cp_ray.router.fleet_page import Fleet
from cp_ray.router.liveness import Liveness
from cp_ray.router.service import Service, new_id
from cp_ray.router.tokenizer import HuggingFaceTokenizer, PromptTokenizer, WordTokenizer
from cp_ray.router.warming import Warmer
from cp_ray.router.watch import Observer
from cp_ray.store import wire
from cp_ray.store.client import Store
from cp_ray.store.embedded_actor import redis_url
from cp_ray.tracing import new_tracer
from cp_ray.workers.engine import EngineInfo
from cp_ray.workers.models import resolve_model

_INFO_TIMEOUT_S = 30.0
_INDEX_PATIENCE_S = 15.0


@serve.ingress()
class Router:
    """One ingress replica: HTTP in, planned calls to the engine deployment out."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config_json: str, engine: DeploymentHandle
    ) -> None:
        """Raises ConfigError when the model's tokenizer or Redis cannot be used."""
        config = AppConfig.model_validate_json(config_json)
        context = serve.get_replica_context()
        app = context.app_name
        self._tracer = new_tracer(config, app, "router", context.replica_id.unique_id)
        tokenizer = self._tokenizer = await asyncio.to_thread(load_tokenizer, config)
        self._most_cached = config.tokenizer_cache_tokens
        self._trimming = asyncio.create_task(keep_trimmed())
        self._store = await Store.connect(await redis_url(config, app), app)
        self._index = IndexClient(app, config)
        if config.reuse != "plain":
            await self._wait_for_index()
        teller = Teller(self._index)
        self._fleet = Fleet(config, teller)
        self._engine = engine
        liveness = Liveness(
            engine,
            ask_after_s=config.health_check_period_s,
            answer_s=config.health_check_timeout_s,
        )
        dispatcher = Dispatcher(engine, liveness)
        warmer = Warmer(self._index, dispatcher, new_id)
        warms = config.prewarm and config.reuse != "plain"
        self._warming = asyncio.create_task(warmer.run()) if warms else None
        self._service = Service(
            config,
            tokenizer=tokenizer,
            planner=self._index,
            dispatcher=dispatcher,
            store=self._store,
            fetch_info=self._fetch_info,
            observer=Observer(
                app, teller.tell if config.reuse != "plain" else None, tracer=self._tracer
            ),
            sent=warmer.sent if warms else None,
        )
        gc.collect()
        gc.freeze()  # else each full pass goes over what imports made, and every stream waits

    async def _wait_for_index(self) -> None:
        """The first requests should be planned; but an index that does not come holds up nobody."""
        self._index.start()
        deadline = asyncio.get_running_loop().time() + _INDEX_PATIENCE_S
        while not self._index.up and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - once a start
            await asyncio.sleep(0.05)

    async def fills(self) -> dict[str, tuple[int, int]]:
        """What traffic fills: tokens of texts kept, and the most there can be."""
        return {"tokenized texts": (self._tokenizer.cached_tokens, self._most_cached)}

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        api = build_api(self._service)
        self._fleet.add_to(api)
        return api

    async def _fetch_info(self) -> EngineInfo:
        try:
            async with asyncio.timeout(_INFO_TIMEOUT_S):
                return wire.decode(await self._engine.info.remote(), EngineInfo)
        except (RayError, RayServeException, TimeoutError) as error:
            raise EngineUnavailable(
                "no engine replica answers yet: try again when GET /readyz gives 200"
            ) from error


def load_tokenizer(config: AppConfig) -> PromptTokenizer:
    """The model's tokenizer; the simulated engine needs no model and gets words."""
    if config.engine == "simulated":
        return WordTokenizer(config.tokenizer_cache_tokens)
    return HuggingFaceTokenizer(resolve_model(config.model).path, config.tokenizer_cache_tokens)
