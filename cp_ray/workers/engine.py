"""The engine contract: what a replica asks of vLLM, SGLang or the simulated engine.

`tests/contract` runs one suite over every implementation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

import msgspec

from cp_ray.core.packed import unpacked
from cp_ray.core.types import Eviction, ReplicaId, RequestId


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling parameters, with OpenAI's names and defaults."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    ignore_eos: bool = False


class EngineRequest(msgspec.Struct, frozen=True):
    """One generation. prompt: packed token ids; block borders were tokenized apart.

    traceparent: of the span that waits for the first token, where requests are traced.
    estimated_ttft_s, estimated_prefill_s: the plan's; both 0 where there is none. ahead: no client
    waits for it.
    """

    request_id: RequestId
    prompt: bytes
    sampling: Sampling
    cache_salt: str | None = None
    traceparent: str | None = None
    estimated_ttft_s: float = 0.0
    estimated_prefill_s: float = 0.0
    ahead: bool = False

    @property
    def tokens(self) -> memoryview:
        """The prompt's token ids."""
        return unpacked(self.prompt)


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Text that came since the last chunk; `finish_reason` ("stop" or "length") only on the last.

    cached_tokens: prompt tokens the engine took from its cache, by its own count.
    held_tokens: those it should have found, by the events it published before it scheduled the
    request; only on the last chunk, None where that is not known.
    """

    text: str
    completion_tokens: int
    prompt_tokens: int
    cached_tokens: int
    finish_reason: str | None = None
    held_tokens: int | None = None


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """What one replica sends of an answer at a time: the chunks that came since the last one."""

    replica: ReplicaId
    chunks: list[Chunk]


class EngineInfo(msgspec.Struct, frozen=True):
    """Facts of a started engine. simulated: answers do not come from a model.

    timing: what a simulated engine's times come from, with their error; empty for a real one.
    step_tokens: as `core.types.ReplicaInfo`.
    """

    engine: str
    model: str
    page_size: int
    capacity_tokens: int
    max_model_len: int
    simulated: bool = False
    timing: str = ""
    step_tokens: int = 0


class CacheListener(Protocol):
    """Hears what the engine's cache lost. Called on the event loop's thread, never blocks."""

    def evicted(self, evictions: list[Eviction]) -> None:
        """Requests whose usable leading tokens shrank."""

    def new_epoch(self) -> None:
        """Nothing believed before holds any more (reset, restart, a hole in the events)."""


class Engine(Protocol):
    """One engine process (or model of one) under a replica."""

    async def start(self, listener: CacheListener) -> EngineInfo:
        """Load the model and begin to report. Raises ConfigError with the fix."""

    def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """Stream the answer; closing the generator aborts the request.

        Raises InvalidRequest when the prompt cannot fit, EngineError when the engine fails,
        EngineGone when it is dead.
        """

    def held(self) -> dict[RequestId, int]:
        """Leading prompt tokens still usable of every request followed: what a dump carries.

        Agrees with what the listener has heard.
        """

    async def reset_cache(self) -> None:
        """Drop the prefix cache; the listener hears a new epoch."""

    async def ping(self) -> None:
        """Return when the engine itself has answered, which it does between any two of its steps.

        Never, while it hangs. Raises EngineError when it is dead.
        """

    async def check_health(self) -> None:
        """Raise EngineError when the engine is dead."""

    async def close(self) -> None:
        """Stop; a second call does nothing."""


EngineFactory = Callable[[], Engine]
