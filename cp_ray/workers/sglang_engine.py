"""SGLang as an engine: one `sglang.Engine`, its radix cache followed by its public KV events.

SGLang kills its own process when a part of it dies; Serve then replaces the replica.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import multiprocessing
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError, EngineError, InvalidRequest
from cp_ray.workers.engine import Chunk, EngineInfo, EngineRequest, Sampling
from cp_ray.workers.engine_adapter import EngineAdapter
from cp_ray.workers.engine_kwargs import prepare_environment
from cp_ray.workers.models import resolve_model
from cp_ray.workers.residency import Residency
from cp_ray.workers.sglang_args import CPU_ENVIRONMENT, REFUSED, engine_args

START_S = 120.0
"""The longest wait for the facts of an engine that says it has started."""


class SglangEngine(EngineAdapter):
    """Engine over `sglang.Engine`."""

    NAME = "SGLang"
    _vocabulary = 0

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """Stream the answer. `completion_tokens` counts from the start of the answer."""
        tokens = request.tokens
        self._check(tokens)
        residency = self._view.residency
        path = residency.path(tokens, request.cache_salt)
        first = True
        try:
            outputs = await self._llm.async_generate(
                input_ids=tokens.tolist(),
                sampling_params=self._parameters(request),
                rid=_engine_id(request.request_id),
                cache_salt=request.cache_salt,
                stream=True,
            )
            async with aclosing(outputs):
                async for output in outputs:
                    meta = output["meta_info"]
                    finish = _finish(meta["finish_reason"])
                    if first:
                        self._view.register(request.request_id, path)
                        first = False
                    cached = meta["cached_tokens"]
                    found = residency.held_when_scheduled(path, cached) if finish else None
                    yield Chunk(
                        output["text"],
                        meta["completion_tokens"],
                        len(tokens),
                        cached,
                        finish,
                        found,
                    )
        except (InvalidRequest, EngineError):
            raise
        except ValueError as error:  # what SGLang raises for a request it does not take
            raise InvalidRequest(f"SGLang refuses the request: {error}") from error
        except Exception as error:
            raise EngineError(f"SGLang failed: {type(error).__name__}: {error}") from error

    def _load(self) -> None:
        REFUSED.check(self._config.engine_kwargs)
        if importlib.util.find_spec("sglang") is None:
            raise ConfigError(
                "engine=sglang needs SGLang in this Python: pip install sglang, or name the "
                "Python that has it with engine_python= (docs/engines.md)",
                param="engine",
            )
        model = resolve_model(self._config.model)
        import torch

        cpu = not torch.cuda.is_available()
        prepare_environment(CPU_ENVIRONMENT if cpu else {}, local=model.local)
        import sglang

        args = engine_args(self._config, model, self._follower.endpoints, cpu)
        try:
            self._llm = sglang.Engine(**args)
        except TypeError as error:
            raise ConfigError(
                f"engine_kwargs: SGLang says {error}", param="engine_kwargs"
            ) from error
        except (ValueError, OSError, RuntimeError) as error:
            # What SGLang raises for a bad model, too little memory or a wrong argument.
            raise ConfigError(f"SGLang does not start: {error}", param="model") from error
        ours = logging.getLogger("cp_ray")
        if ours.level == logging.NOTSET:
            # SGLang gives the root logger its own level, and our warnings would end there.
            ours.setLevel(logging.WARNING)

    async def _facts(self) -> EngineInfo:
        manager = self._llm.tokenizer_manager
        async with asyncio.timeout(START_S):
            state = (await manager.get_internal_state())[0]
        page = state["page_size"]
        capacity = state["memory_usage"]["token_capacity"] // page * page
        self._vocabulary = manager.model_config.vocab_size
        # A request has to fit with its answer and a page to spare, or it waits for ever.
        longest = min(manager.max_req_input_len, capacity - 2 * page)
        return EngineInfo(
            engine="sglang",
            model=self._config.public_model_name,
            page_size=page,
            capacity_tokens=capacity,
            max_model_len=longest,
            step_tokens=max(0, state.get("chunked_prefill_size") or 0),  # -1: prompts are not cut
        )

    async def _residency(self) -> Residency:
        most = self._config.followed_requests
        return Residency(self._info.page_size, self._pages, most, copies=False)

    def _check(self, tokens: memoryview) -> None:
        self._check_length(len(tokens))
        if not tokens or max(tokens) >= self._vocabulary:
            # SGLang does not look, and its scheduler dies of such a token.
            raise InvalidRequest(
                f"SGLang refuses the request: token ids lie between 0 and {self._vocabulary - 1}"
            )

    def _parameters(self, request: EngineRequest) -> dict[str, Any]:
        sampling: Sampling = request.sampling
        room = self._info.max_model_len - len(request.tokens)
        return {
            "max_new_tokens": min(sampling.max_tokens, room),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "sampling_seed": sampling.seed,
            "stop": list(sampling.stop),
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "ignore_eos": sampling.ignore_eos,
        }

    async def _drop_cache(self) -> None:
        """SGLang flushes an idle cache only: running requests are put back into its queue first."""
        from sglang.srt.managers.io_struct import (
            ContinueGenerationReqInput,
            PauseGenerationReqInput,
        )

        manager = self._llm.tokenizer_manager
        await manager.pause_generation(PauseGenerationReqInput(mode="retract"))
        try:
            flushed = await manager.flush_cache()
        finally:
            # The memory of a GPU stays with the engine: giving it back would only cost time.
            await manager.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))
        if not flushed.success:
            raise EngineError("SGLang does not drop its cache: requests still hold pages of it")

    async def _sign_of_life(self) -> None:
        await self._llm.tokenizer_manager.get_internal_state()

    def _check_alive(self) -> None:
        alive = {process.pid for process in multiprocessing.active_children()}
        if not alive.issuperset(self._llm.get_all_child_pids()):
            raise EngineError("a process of SGLang's engine died")


def _engine_id(request: RequestId) -> str:
    """SGLang aborts every request whose id begins with the one given: no id may begin another."""
    return f"{len(request):04}:{request}"


def _finish(reason: dict[str, Any] | None) -> str | None:
    """OpenAI's name of why an answer ended; raises for one that SGLang ended by an error."""
    if reason is None:
        return None
    if reason["type"] != "abort":
        return str(reason["type"])
    said = reason.get("message") or "no reason given"
    if reason.get("status_code") == 400:
        raise InvalidRequest(f"SGLang refuses the request: {said}")
    raise EngineError(f"SGLang ended the request: {said}")
