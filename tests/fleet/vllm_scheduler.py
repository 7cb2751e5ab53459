"""vLLM's own Scheduler in virtual time: no model, no forward pass, the step's cost from StepCost.

What is checked against it is the order of things: who is admitted when, which chunks and which
answers share a step, what is found cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cp_ray.replay.fleet.clock import StepCost
from cp_ray.workers.models import resolve_model

MAX_LEN = 32_768


class Asked(msgspec.Struct, frozen=True):
    """A request. at_s: when it comes."""

    name: str
    at_s: float
    prompt: tuple[int, ...]
    output_tokens: int


class Seen(msgspec.Struct, frozen=True):
    """Cached tokens, and the times of the first and the last token."""

    cached: int
    first_s: float
    ended_s: float


def run_vllm(
    requests: Sequence[Asked], *, page: int, pages: int, step_tokens: int, cost: StepCost
) -> dict[str, Seen]:
    """requests: in order of arrival."""
    scheduler, request_of = _scheduler(page, pages, step_tokens)
    now = 0.0
    coming = list(requests)
    cached: dict[str, int] = {}
    first: dict[str, float] = {}
    ended: dict[str, float] = {}
    while len(ended) < len(requests):
        if not scheduler.has_unfinished_requests():
            now = max(now, coming[0].at_s)
        while coming and coming[0].at_s <= now:
            scheduler.add_request(request_of(coming.pop(0)))
        planned = scheduler.schedule()
        for new in planned.scheduled_new_reqs:
            cached.setdefault(new.req_id, new.num_computed_tokens)
        now += _seconds(scheduler, planned.num_scheduled_tokens, cost)
        names = list(planned.num_scheduled_tokens)
        tokens = [
            [7]
            if scheduler.requests[n].num_computed_tokens >= scheduler.requests[n].num_tokens
            else []
            for n in names
        ]
        out = scheduler.update_from_output(planned, _output(names, tokens))
        for outputs in out.values():
            for one in outputs.outputs:
                if one.new_token_ids:
                    first.setdefault(one.request_id, now)
                if one.finish_reason is not None:
                    ended[one.request_id] = now
    return {name: Seen(cached[name], first[name], ended[name]) for name in ended}


def _seconds(scheduler: Any, tokens: Mapping[str, int], cost: StepCost) -> float:
    """Of one step. `schedule` has already counted its tokens as computed."""
    seconds = cost.fixed_s
    for name, new in tokens.items():
        request = scheduler.requests[name]
        before = request.num_computed_tokens - new
        if before < request.num_prompt_tokens:
            seconds += cost.chunk_s(before, new)
        else:
            seconds += cost.decode_s
    return seconds


def _output(names: list[str], tokens: list[list[int]]) -> Any:
    from vllm.v1.outputs import ModelRunnerOutput

    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: at for at, name in enumerate(names)},
        sampled_token_ids=tokens,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def _scheduler(page: int, pages: int, step_tokens: int) -> tuple[Any, Any]:
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    cache = CacheConfig(block_size=page, enable_prefix_caching=True)
    cache.num_gpu_blocks = pages + 1
    config = VllmConfig(
        model_config=ModelConfig(
            model=resolve_model("tiny", progress=False).path,
            dtype="float32",
            max_model_len=MAX_LEN,
        ),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=256,
            max_num_batched_tokens=step_tokens,
            max_model_len=MAX_LEN,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        device_config=DeviceConfig("cpu"),
    )
    cache.block_size = page
    spec = FullAttentionSpec(block_size=page, num_kv_heads=1, head_size=64, dtype=torch.float32)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(page, sha256)
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=pages + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=page,
    )

    def request_of(asked: Asked) -> Any:
        return Request(
            request_id=asked.name,
            prompt_token_ids=list(asked.prompt),
            sampling_params=SamplingParams(
                max_tokens=asked.output_tokens, temperature=0, ignore_eos=True
            ),
            pooling_params=None,
            block_hasher=hasher,
        )

    return scheduler, request_of
