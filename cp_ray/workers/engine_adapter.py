"""Engine adapter: what the adapters of real engines share; their caches are known by events."""

from __future__ import annotations

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from cp_ray.config import AppConfig
from cp_ray.core.types import RequestId
from cp_ray.errors import EngineError, InvalidRequest
from cp_ray.workers.cache_view import CacheView
from cp_ray.workers.engine import CacheListener, Chunk, EngineInfo, EngineRequest
from cp_ray.workers.event_follower import EventFollower
from cp_ray.workers.kv_events import EventStream
from cp_ray.workers.residency import Residency


class EngineAdapter(ABC):
    """An `Engine` over one engine of a library, for one event loop.

    NAME: the engine's, for messages. `_llm` is the library's object, None while it does not run;
    its `shutdown` ends it.
    """

    NAME = ""

    def __init__(self, config: AppConfig) -> None:
        self._config = config
        self._llm: Any = None
        self._info: EngineInfo
        self._follower = EventFollower()
        self._view: CacheView
        self._events: EventStream

    async def start(self, listener: CacheListener) -> EngineInfo:
        """Load the model (off the event loop) and follow its cache.

        Raises ConfigError: no such engine here, a setting it refuses, a model it cannot load.
        """
        self._follower.open()
        try:
            await asyncio.to_thread(self._load)
            self._info = await self._facts()
            await self._follower.follow(await self._residency(), listener, self._drop_cache)
            self._view, self._events = self._follower.view, self._follower.events
        except BaseException:
            await self.close()
            raise
        return self._info

    @abstractmethod
    def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """Stream the answer. `completion_tokens` counts from the start of the answer."""

    def held_tokens(self, prompt: Sequence[int], salt: str | None = None) -> int:
        """Leading prompt tokens the engine should find cached, by the events heard so far."""
        residency = self._view.residency
        return residency.held_tokens(residency.path(prompt, salt))

    def held(self) -> dict[RequestId, int]:
        """Leading prompt tokens still usable of every request followed."""
        return self._view.residency.held()

    async def reset_cache(self) -> None:
        """Drop the prefix cache. Running requests start their prefill again.

        The engine says so only with its next step, but the listener hears of it now.
        """
        await self._view.reset()

    async def ping(self) -> None:
        """See `Engine.ping`."""
        if self._llm is None:
            raise EngineError(f"{self.NAME} is not running")
        await self._sign_of_life()

    async def check_health(self) -> None:
        """Raise EngineError when the engine died, or when nobody follows its cache any more."""
        if self._llm is None:
            raise EngineError(f"{self.NAME} is not running")
        self._check_alive()
        self._follower.check()

    async def close(self) -> None:
        """Stop the engine and everything started for it."""
        await self._follower.close()
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)
            del llm
            gc.collect()  # vLLM's lies in a cycle, and would fail in its destructor at exit

    def _check_length(self, tokens: int) -> None:
        longest = min(self._info.max_model_len - 1, self._info.capacity_tokens)
        if tokens > longest:
            raise InvalidRequest(
                f"the prompt has {tokens} tokens, this model takes at most {longest}: "
                "send fewer or shorter documents",
                param="messages",
                code="context_length_exceeded",
            )

    @property
    def _pages(self) -> int:
        return self._info.capacity_tokens // self._info.page_size

    @abstractmethod
    def _load(self) -> None:
        """Set `_llm`; in a thread of its own. Raises ConfigError."""

    @abstractmethod
    async def _facts(self) -> EngineInfo:
        """What the started engine says of itself."""

    @abstractmethod
    async def _residency(self) -> Residency:
        """An empty one, for `_info`."""

    @abstractmethod
    async def _drop_cache(self) -> None:
        """Drop the engine's prefix cache and return when it is done. Raises EngineError."""

    @abstractmethod
    async def _sign_of_life(self) -> None:
        """Return when the engine has answered anything. Raises EngineError."""

    @abstractmethod
    def _check_alive(self) -> None:
        """Raise EngineError when a process of the engine is dead."""
