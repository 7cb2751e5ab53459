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

from cp_ray.config import AppConfig
from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError, EngineError, InvalidRequest
from cp_ray.workers.cache_view import CacheView
from cp_ray.workers.engine import CacheListener, Chunk, EngineInfo, EngineRequest, Sampling
from cp_ray.workers.event_follower import EventFollower
from cp_ray.workers.kv_events import EventStream
from cp_ray.workers.models import resolve_model
from cp_ray.workers.residency import Residency
from cp_ray.workers.sglang_args import check_engine_kwargs, engine_args, prepare_environment

log = logging.getLogger(__name__)

START_S = 30.0
"""The longest wait for the facts of an engine that says it has started."""


class SglangEngine:
    """Engine over `sglang.Engine`, for one event loop."""

    def __init__(self, config: AppConfig) -> None:
        self._config = config
        self._llm: Any = None
        self._info: EngineInfo
        self._follower = EventFollower()
        self._view: CacheView
        self._events: EventStream
        self._vocabulary = 0

    async def start(self, listener: CacheListener) -> EngineInfo:
        """Load the model (off the event loop) and follow its cache.

        Raises ConfigError: no SGLang here, a setting it refuses, a model it cannot load.
        """
        self._follower.open()
        try:
            await asyncio.to_thread(self._load)
            self._info = await self._facts()
            blocks = self._info.capacity_tokens // self._info.page_size
            residency = Residency(self._info.page_size, blocks, copies=False)
            await self._follower.follow(residency, listener, self._drop_cache)
            self._view, self._events = self._follower.view, self._follower.events
        except BaseException:
            await self.close()
            raise
        return self._info

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """Stream the answer. `completion_tokens` counts from the start of the answer."""
        self._check(request.prompt)
        residency = self._view.residency
        path = residency.path(request.prompt, request.cache_salt)
        first = True
        try:
            outputs = await self._llm.async_generate(
                input_ids=list(request.prompt),
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
                        len(request.prompt),
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
            raise EngineError("SGLang is not running")
        alive = {process.pid for process in multiprocessing.active_children()}
        if not alive.issuperset(self._llm.get_all_child_pids()):
            raise EngineError("a process of SGLang's engine died")
        self._follower.check()

    async def close(self) -> None:
        """Stop the engine and everything started for it."""
        await self._follower.close()
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

    def _load(self) -> None:
        check_engine_kwargs(self._config.engine_kwargs)
        if importlib.util.find_spec("sglang") is None:
            raise ConfigError(
                "engine=sglang needs SGLang in this Python: pip install sglang, or name the "
                "Python that has it with engine_python= (docs/engines.md)",
                param="engine",
            )
        model = resolve_model(self._config.model)
        import torch

        cpu = not torch.cuda.is_available()
        prepare_environment(model.local, cpu)
        import sglang

        args = engine_args(self._config, model, self._follower.sockets, cpu)
        try:
            self._llm = sglang.Engine(**args)
        except TypeError as error:
            raise ConfigError(
                f"engine_kwargs: SGLang says {error}", param="engine_kwargs"
            ) from error
        except (ValueError, OSError, RuntimeError) as error:
            # What SGLang raises for a bad model, too little memory or a wrong argument.
            raise ConfigError(f"SGLang does not start: {error}", param="model") from error

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
        )

    def _check(self, prompt: tuple[int, ...]) -> None:
        longest = self._info.max_model_len - 1
        if len(prompt) > longest:
            raise InvalidRequest(
                f"the prompt has {len(prompt)} tokens, this model takes at most {longest}: "
                "send fewer or shorter documents",
                param="messages",
                code="context_length_exceeded",
            )
        if not prompt or min(prompt) < 0 or max(prompt) >= self._vocabulary:
            # SGLang does not look, and its scheduler dies of such a token.
            raise InvalidRequest(
                f"SGLang refuses the request: token ids lie between 0 and {self._vocabulary - 1}"
            )

    def _parameters(self, request: EngineRequest) -> dict[str, Any]:
        sampling: Sampling = request.sampling
        room = self._info.max_model_len - len(request.prompt)
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
