"""Router: the ingress deployment. Wires the HTTP application to Ray, the index and Redis."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cp_ray.allocator import keep_trimmed
from cp_ray.config import AppConfig
from cp_ray.errors import EngineUnavailable
from cp_ray.router.dispatch import Dispatcher
from cp_ray.router.liveness import Liveness
from cp_ray.router.parts import Parts
from cp_ray.router.ports import FetchInfo
from cp_ray.router.service import new_id
from cp_ray.router.warming import Warmer
from cp_ray.store import wire
from cp_ray.workers.engine import EngineInfo

_INFO_TIMEOUT_S = 30.0


@serve.ingress()
class Router:
    """One ingress replica: HTTP in, planned calls to the engine deployment out."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config_json: str, engine: DeploymentHandle
    ) -> None:
        """Raises ConfigError when the model's tokenizer or Redis cannot be used."""
        config = AppConfig.model_validate_json(config_json)
        self._parts = await Parts.gather(config)
        self._trimming = asyncio.create_task(keep_trimmed())
        liveness = Liveness(
            engine,
            ask_after_s=config.health_check_period_s,
            answer_s=config.health_check_timeout_s,
        )
        dispatcher = Dispatcher(engine, liveness)
        warmer = Warmer(self._parts.index, dispatcher, new_id)
        warms = config.prewarm and config.reuse != "plain"
        self._warming = asyncio.create_task(warmer.run()) if warms else None
        sent = warmer.sent if warms else None
        self._service = self._parts.service("router", dispatcher, info_of(engine), sent=sent)

    async def fills(self) -> dict[str, tuple[int, int]]:
        """What traffic fills: tokens of texts kept, and the most there can be."""
        return self._parts.fills()

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        return self._parts.api(self._service)


def info_of(engine: DeploymentHandle) -> FetchInfo:
    """What asks any replica for the facts of its engine; raises EngineUnavailable."""

    async def fetch() -> EngineInfo:
        try:
            async with asyncio.timeout(_INFO_TIMEOUT_S):
                return wire.decode(await engine.info.remote(), EngineInfo)
        except (RayError, RayServeException, TimeoutError) as error:
            raise EngineUnavailable(
                "no engine replica answers yet: try again when GET /readyz gives 200"
            ) from error

    return fetch
