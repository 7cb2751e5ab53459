"""Guardrails of all routes: who is a canary, whose reordering is off, and what scores came.

A route is a tenant's requests of one `agent` (or of none). Scores come from the client, by the id
of the answer; whether that request was a canary follows from its id. What is off is kept in Redis,
so that all ingress replicas and later ones know it; each replica tests the scores that it hears
by itself, at its share of alpha. Where Redis is away, reordering stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from cp_ray.config import AppConfig
from cp_ray.core.guardrail import Guardrail, Rule, is_canary
from cp_ray.errors import CpRayError, InvalidRequest
from cp_ray.router.history import digest
from cp_ray.router.ports import RecordStore

OFF_TTL_S = 30 * 24 * 3600
"""A route that was switched off is tried again after a month without requests."""
_SCORE_TTL_S = 24 * 3600
_LOOK_S = 10.0
_MOST_ROUTES = 1000
_TIMEOUT_S = 0.25
_log = logging.getLogger(__name__)


class Guardrails:
    """Owns the tests of this process. Without a canary share it does nothing."""

    def __init__(
        self,
        store: RecordStore | None,
        config: AppConfig,
        clock: Callable[[], float] = time.monotonic,
        *,
        ingresses: int | None = None,
    ) -> None:
        """ingresses: among which scores are spread; default: the configured ones."""
        self._store = store
        self._clock = clock
        self._tests: OrderedDict[str, Guardrail] = OrderedDict()
        self._off: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        self._rule = (
            Rule(
                share=config.canary_share,
                bound=config.guardrail_loss,
                alpha=config.guardrail_alpha / (ingresses or config.ingress_replicas),
            )
            if config.canary_share
            else None
        )

    @staticmethod
    def route(tenant: str, agent: str | None) -> str:
        """Name of a route."""
        return f"{tenant}/{agent or ''}"

    async def reorders(self, route: str, request_id: str) -> bool:
        """Whether this request may be reordered; remembers that a score may come for it."""
        if self._rule is None:
            return True
        await self._put(f"scored:{request_id}", route.encode(), _SCORE_TTL_S)
        if is_canary(request_id, self._rule.share):
            return False
        return not await self._is_off(route)

    async def score(self, tenant: str, request_id: str, score: float) -> dict[str, Any]:
        """Take one score, once; what is known of the route. Raises InvalidRequest."""
        if self._rule is None:
            raise InvalidRequest("the guardrail is off: start with canary_share above 0")
        key = f"scored:{request_id}"
        route = await self._get(key, _SCORE_TTL_S)
        if route is None or not route.startswith(f"{tenant}/"):
            raise InvalidRequest(
                f"id: no request {request_id!r} waits for a score: send the id of an answer that "
                "could be reordered, once, within a day",
                param="id",
                status=404,
            )
        await self._put(key, b"", _SCORE_TTL_S)
        test = self._tests.get(route)
        if test is None:
            test = self._tests[route] = Guardrail(self._rule)
            if len(self._tests) > _MOST_ROUTES:
                self._tests.popitem(last=False)
        before = test.stopped
        test.observe(score, canary=is_canary(request_id, self._rule.share))
        if test.stopped and not before:
            audit = test.audit(route)
            _log.warning(audit)
            self._off[route] = (self._clock(), True)
            await self._put(f"guardrail_off:{digest(route)}", audit.encode(), OFF_TTL_S)
        off = await self._is_off(route)
        return {"route": route, "reordering": not off, "audit": test.audit(route)}

    async def _is_off(self, route: str) -> bool:
        looked, off = self._off.get(route, (-_LOOK_S, False))
        if off or self._clock() - looked < _LOOK_S:
            return off
        off = await self._get(f"guardrail_off:{digest(route)}", OFF_TTL_S) is not None
        self._off[route] = (self._clock(), off)
        if len(self._off) > _MOST_ROUTES:
            self._off.popitem(last=False)
        return off

    async def _get(self, key: str, ttl_s: int) -> str | None:
        if self._store is None:
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                (value,) = await self._store.get_records([key], ttl_s)
        except (CpRayError, TimeoutError) as error:
            _log.warning("guardrail: read failed (%s)", error)
            return None
        return value.decode() if value is not None else None

    async def _put(self, key: str, value: bytes, ttl_s: int) -> None:
        if self._store is None:
            return
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._store.put_records({key: value}, ttl_s)
        except (CpRayError, TimeoutError) as error:
            _log.warning("guardrail: write failed (%s)", error)
