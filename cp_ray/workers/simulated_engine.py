"""An engine without a model: a real prefix cache under a model of time.

Prefill is serial (one request computes at a time, in order of arrival) and takes as long as its
device's measured curve says (prefill_times.py); decode runs at a fixed rate for each request.
Answers, and the engine's facts, say that they are simulated. Pages of output tokens are not
modelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from cp_ray.config import AppConfig
from cp_ray.core.pages import token_pages
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import RequestId
from cp_ray.errors import EngineError, EngineUnavailable, InvalidRequest
from cp_ray.workers.engine import CacheListener, Chunk, EngineInfo, EngineRequest, Sampling
from cp_ray.workers.prefill_times import pace_of

DEFAULT_CACHE_TOKENS = 1 << 18
DEFAULT_MAX_MODEL_LEN = 1 << 17


class SimulatedEngine:
    """Implements `workers.engine.Engine`; one event loop uses it."""

    def __init__(self, config: AppConfig) -> None:
        cache_tokens = config.cache_tokens or DEFAULT_CACHE_TOKENS
        pace = pace_of(config)
        self._info = EngineInfo(
            engine="simulated",
            model=config.public_model_name,
            page_size=config.page_size,
            capacity_tokens=cache_tokens // config.page_size * config.page_size,
            max_model_len=config.max_model_len or DEFAULT_MAX_MODEL_LEN,
            simulated=True,
            timing=pace.source,
        )
        self._curve = pace.curve
        self._decode_rate = config.decode_tokens_per_s
        self._cache = PrefixCache(
            cache_tokens,
            config.page_size,
            duplicates=True,
            record_limit=config.followed_requests,
        )
        self._listener: CacheListener | None = None
        self._prefill = asyncio.Lock()
        self._room = asyncio.Event()
        self._busy_until = 0.0
        self._closed = False

    async def start(self, listener: CacheListener) -> EngineInfo:
        """Begin to report to `listener`."""
        self._listener = listener
        return self._info

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """Stream "[simulated] token token ..."; closing the iterator frees all it held."""
        await self.check_health()
        output = self._admissible(request)
        prompt_tokens = len(request.tokens)
        try:
            cached, finished_at = await self._run_prefill(request)
            texts, reason = simulated_answer(request.sampling, output)
            if not texts:
                yield Chunk("", 0, prompt_tokens, cached, reason, cached)
            for number, text in enumerate(texts):
                await self._sleep_until(finished_at + number / self._decode_rate)
                await self.check_health()
                last = number == len(texts) - 1
                yield Chunk(
                    text,
                    number + 1,
                    prompt_tokens,
                    cached,
                    finish_reason=reason if last else None,
                    held_tokens=cached if last else None,  # events and cache are one here
                )
        finally:
            self._cache.release(request.request_id)
            self._room.set()

    def held(self) -> dict[RequestId, int]:
        """Leading prompt tokens still cached of every request whose prefill is done."""
        return self._cache.held()

    async def reset_cache(self) -> None:
        """Drop the prefix cache; the listener hears a new epoch."""
        self._cache.clear()
        if self._listener is not None:
            self._listener.new_epoch()

    async def ping(self) -> None:
        """It has no steps in which it could hang."""
        await self.check_health()

    async def check_health(self) -> None:
        """Raise EngineUnavailable before `start`, EngineError after `close`."""
        if self._closed:
            raise EngineError("the simulated engine is closed; start another replica")
        if self._listener is None:
            raise EngineUnavailable("the simulated engine has not started; await start() first")

    async def close(self) -> None:
        """Stop; requests in flight fail with EngineError."""
        self._closed = True
        self._room.set()

    def _admissible(self, request: EngineRequest) -> int:
        """Output tokens the request may have, or InvalidRequest when its prompt cannot fit."""
        tokens = len(request.tokens)
        if not tokens:
            raise InvalidRequest("the prompt is empty; send `messages` with text", param="messages")
        limit = min(self._info.max_model_len - 1, self._info.capacity_tokens)
        if tokens > limit:
            raise InvalidRequest(
                f"`messages` and documents are {tokens} tokens and the simulated engine takes "
                f"{limit}; send fewer or shorter documents, or raise max_model_len and "
                "cache_tokens",
                param="messages",
                code="context_length_exceeded",
            )
        return min(request.sampling.max_tokens, self._info.max_model_len - tokens)

    async def _run_prefill(self, request: EngineRequest) -> tuple[int, float]:
        """Cached tokens, and the time on the loop's clock when the prompt was computed."""
        clock = asyncio.get_running_loop().time
        pages = token_pages(request.prompt, self._info.page_size, request.cache_salt)
        arrived = clock()
        async with self._prefill:
            while (cached := self._cache.admit(request.request_id, pages)) is None:
                self._room.clear()
                await self._room.wait()
                arrived = clock()
                await self.check_health()
            self._report()
            seconds = self._curve.seconds(cached, len(request.tokens) - cached)
            # From where the last one ended: waking up late must not slow the engine down.
            self._busy_until = max(self._busy_until, arrived) + seconds
            try:
                await self._sleep_until(self._busy_until)
            except asyncio.CancelledError:
                self._busy_until = clock()
                raise
            self._cache.prefilled(request.request_id)
            self._report()
            return cached, self._busy_until

    def _report(self) -> None:
        evictions = self._cache.take_evictions()
        if evictions and self._listener is not None:
            self._listener.evicted(evictions)

    @staticmethod
    async def _sleep_until(moment: float) -> None:
        await asyncio.sleep(max(moment - asyncio.get_running_loop().time(), 0.0))


def simulated_answer(sampling: Sampling, output_tokens: int) -> tuple[list[str], str]:
    """Text of each token, and the finish reason. A stop string ends the answer before it."""
    texts = ["[simulated]", *([" token"] * (output_tokens - 1))][: max(output_tokens, 0)]
    whole = "".join(texts)
    ends = [at for stop in sampling.stop if stop and (at := whole.find(stop)) >= 0]
    if not ends:
        return texts, "length"
    kept: list[str] = []
    room = min(ends)
    while room > 0:
        kept.append(texts[len(kept)][:room])
        room -= len(kept[-1])
    return kept, "stop"
