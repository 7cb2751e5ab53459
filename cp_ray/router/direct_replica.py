"""DirectReplica: an engine replica that serves HTTP itself, for the direct data plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from fastapi import FastAPI
from ray import serve

from cp_ray.config import AppConfig
from cp_ray.core.types import Step
from cp_ray.errors import CpRayError, EngineError
from cp_ray.router.handed import Seal
from cp_ray.router.parts import Parts
from cp_ray.router.quotas import Quotas
from cp_ray.workers.engine import Delivery, EngineInfo, EngineRequest
from cp_ray.workers.replica import EngineReplica


@serve.ingress()
class DirectReplica(EngineReplica):
    """One engine with the whole HTTP in front: plans come with the requests."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc]
        """Load the engine. Raises ConfigError."""
        await super().__init__(config_json)
        self._config_json = config_json
        config = AppConfig.model_validate_json(config_json)
        self._parts = await Parts.gather(config)
        self._service = self._parts.service(
            "replica-http",
            Here(self, config.max_ongoing_requests),
            self._fetch_info,
            places=config.max_ongoing_requests,
            ingresses=config.most_replicas,
            quotas=Quotas(config, ingresses=1),  # a tenant's requests are on few of the replicas
        )

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        return self._parts.api(self._service, Seal(self._config_json))

    async def fills(self) -> dict[str, tuple[int, int]]:
        """Of the engine and of the HTTP before it."""
        return await super().fills() | self._parts.fills()

    async def __del__(self) -> None:
        """As the engine's; Serve awaits it."""
        await super().__del__()
        if (parts := getattr(self, "_parts", None)) is not None:
            await parts.close()

    async def _fetch_info(self) -> EngineInfo:
        return self._info


class Here:
    """A Dispatcher to the engine of this very process, for so many requests at a time.

    Serve's own limit is higher on this plane: it lets in who waits, as they came, and answers the
    others in its own words; so they wait here, fair between tenants (`Admission`).
    """

    def __init__(self, replica: EngineReplica, most: int) -> None:
        self._replica = replica
        self._running = asyncio.Semaphore(most)

    async def stream(
        self,
        step: Step | None,  # noqa: ARG002 - wherever it was planned, it has come here
        request: EngineRequest,
        issued: Callable[[], None] | None = None,
    ) -> AsyncGenerator[Delivery, None]:
        """Deliveries of one request. Closing the iterator aborts it in the engine."""
        try:
            async with self._running, aclosing(self._replica.deliveries(request)) as stream:
                if issued is not None:
                    issued()
                async for delivery in stream:
                    yield delivery
        except CpRayError:
            raise
        except Exception as error:
            raise EngineError(f"the engine failed: {type(error).__name__}: {error}") from error
