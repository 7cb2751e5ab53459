"""What every process that serves HTTP is made of: tokenizer, Redis, the index, and a Service."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from fastapi import FastAPI
from ray import serve

from cp_ray.config import AppConfig
from cp_ray.index_actor.client import IndexClient
from cp_ray.index_actor.teller import Teller
from cp_ray.router.endpoints import build_api
from cp_ray.router.fleet_page import Fleet
from cp_ray.router.handed import Seal
from cp_ray.router.ports import Dispatcher, FetchInfo
from cp_ray.router.service import Service
from cp_ray.router.tokenizer import HuggingFaceTokenizer, PromptTokenizer, WordTokenizer
from cp_ray.router.watch import Observer
from cp_ray.store.client import Store
from cp_ray.store.embedded_actor import redis_url
from cp_ray.tracing import Tracer, new_tracer
from cp_ray.workers.models import resolve_model

_INDEX_PATIENCE_S = 15.0


class Parts:
    """One per process; `gather` makes it."""

    def __init__(
        self, config: AppConfig, app: str, tokenizer: PromptTokenizer, store: Store
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.store = store
        self.index = IndexClient(app, config)
        self.teller = Teller(self.index)
        self._app = app
        self._tracer: Tracer | None = None

    @classmethod
    async def gather(cls, config: AppConfig) -> Parts:
        """Raises ConfigError when the model's tokenizer or Redis cannot be used."""
        app = serve.get_replica_context().app_name
        tokenizer = await asyncio.to_thread(load_tokenizer, config)
        store = await Store.connect(await redis_url(config, app), app)
        parts = cls(config, app, tokenizer, store)
        if config.reuse != "plain":
            await parts._wait_for_index()
        return parts

    def service(
        self, role: str, dispatcher: Dispatcher, fetch_info: FetchInfo, **more: Any
    ) -> Service:
        """The Service of this process. role: its name in traces. more: Service's own arguments."""
        name = serve.get_replica_context().replica_id.unique_id
        self._tracer = new_tracer(self.config, self._app, role, name)
        tell = self.teller.tell if self.config.reuse != "plain" else None
        service = Service(
            self.config,
            tokenizer=self.tokenizer,
            planner=self.index,
            dispatcher=dispatcher,
            store=self.store,
            fetch_info=fetch_info,
            observer=Observer(self._app, tell, tracer=self._tracer),
            **more,
        )
        gc.collect()
        gc.freeze()  # else each full pass goes over what imports made, and every stream waits
        return service

    def api(self, service: Service, seal: Seal | None = None) -> FastAPI:
        """All routes. seal: of the Routers from which requests come with plans."""
        api = build_api(service, seal=seal)
        Fleet(self.config, self.teller).add_to(api)
        return api

    def fills(self) -> dict[str, tuple[int, int]]:
        """What traffic fills: tokens of texts kept, and the most there can be."""
        most = self.config.tokenizer_cache_tokens
        return {"tokenized texts": (self.tokenizer.cached_tokens, most)}

    async def close(self) -> None:
        """Let go of the index, Redis and the collector of traces."""
        await self.index.close()
        await self.store.close()
        if self._tracer is not None:
            await self._tracer.close()

    async def _wait_for_index(self) -> None:
        """The first requests should be planned; but an index that does not come holds up nobody."""
        self.index.start()
        deadline = asyncio.get_running_loop().time() + _INDEX_PATIENCE_S
        while not self.index.up and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - once a start
            await asyncio.sleep(0.05)


def load_tokenizer(config: AppConfig) -> PromptTokenizer:
    """The model's tokenizer; the simulated engine needs no model and gets words."""
    if config.engine == "simulated":
        return WordTokenizer(config.tokenizer_cache_tokens)
    return HuggingFaceTokenizer(resolve_model(config.model).path, config.tokenizer_cache_tokens)
