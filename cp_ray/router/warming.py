"""Pre-warming, the part that has the tokens: prompts sent of late, and their beginnings sent again.

The index says which beginning of which prompt a replica should prefill, because it joined or
because another left, and only while it has nothing else to do (`core/warming.py`). Nobody waits for
these answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from cp_ray.core.packed import TOKEN_BYTES
from cp_ray.core.types import FirstToken, RequestId, Routed, Settled
from cp_ray.core.warming import Offer
from cp_ray.errors import CpRayError
from cp_ray.router.ports import Dispatcher, WarmPlanner
from cp_ray.workers.engine import EngineRequest, Sampling

KEPT_TOKENS = 4_000_000
"""Tokens of prompts kept, 4 bytes each."""
PERIOD_S = 1.0
_ONE_TOKEN = Sampling(max_tokens=1, temperature=0.0)
_log = logging.getLogger("ray.serve")


class Warmer:
    """One per ingress replica, for its event loop."""

    def __init__(
        self, planner: WarmPlanner, dispatcher: Dispatcher, new_id: Callable[[], str]
    ) -> None:
        self._planner = planner
        self._dispatcher = dispatcher
        self._new_id = new_id
        self._prompts: OrderedDict[RequestId, tuple[bytes, str | None]] = OrderedDict()
        self._kept = 0

    def sent(self, request: EngineRequest) -> None:
        """Keep a client's prompt for a while; the oldest go."""
        self._prompts[request.request_id] = (request.prompt, request.cache_salt)
        self._kept += len(request.prompt)
        while self._kept > KEPT_TOKENS * TOKEN_BYTES:
            self._kept -= len(self._prompts.popitem(last=False)[1][0])

    async def run(self) -> None:
        """Warm for ever, one prompt a replica at a time."""
        while True:
            try:
                sent = await self.once()
            except Exception:  # noqa: BLE001 - whatever it was, the next replica may be warmed
                _log.warning("Pre-warming failed, and goes on.", exc_info=True)
                sent = 0
            if not sent:
                await asyncio.sleep(PERIOD_S)

    async def once(self) -> int:
        """Take what is offered and in reach: the first of each replica; how many were sent."""
        mine: dict[str, Offer] = {}
        for offer in await self._planner.warm_offers():
            if offer.request in self._prompts:
                mine.setdefault(offer.replica, offer)
        return sum(await asyncio.gather(*map(self._warm, mine.values())))

    async def _warm(self, offer: Offer) -> bool:
        kept = self._prompts.get(offer.request)
        end = offer.tokens * TOKEN_BYTES
        if kept is None or len(kept[0]) < end:
            return False
        name = offer.request if offer.again else RequestId(self._new_id())
        step = await self._planner.warm(offer, name)
        if step is None:
            return False
        prompt, salt = kept
        request = EngineRequest(name, prompt[:end], _ONE_TOKEN, salt, ahead=True)
        cached = 0
        ok = False
        try:
            async for delivery in self._dispatcher.stream(step, request):
                if not ok:
                    self._planner.feedback(Routed(name, delivery.replica))
                    self._planner.feedback(FirstToken(name))
                ok, cached = True, delivery.chunks[-1].cached_tokens
        except CpRayError as error:  # a replica that dies, or a full queue: only warmth is lost
            _log.info("Pre-warming %s failed: %s", offer.replica, error.message)
            ok = False
        finally:
            self._planner.feedback(Settled(name, cached, ok=ok))
        return ok
