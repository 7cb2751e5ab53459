"""AppConfig -> arguments of vLLM's engine, on CPU and GPU; what breaks the contract is refused."""

from __future__ import annotations

from typing import Any

from cp_ray.config import AppConfig
from cp_ray.errors import ConfigError
from cp_ray.workers.engine_kwargs import EVENTS_ARE_OURS, ONE_CACHE, ONE_STAGE, Refusals
from cp_ray.workers.event_follower import Endpoints
from cp_ray.workers.models import ResolvedModel

CPU_BLOCK = 32
"""Tokens of a cache block on CPU: vLLM's CPU attention takes multiples of 32 only."""
CPU_CACHE_TOKENS = 32_768
CPU_CACHE_BYTES = 2 << 30
"""A cache on CPU has CPU_CACHE_TOKENS, or as many as these bytes hold."""

REFUSED = Refusals(
    elsewhere={
        "model": "set model=",
        "max_model_len": "set max_model_len=",
        "tensor_parallel_size": "set tensor_parallel_size=",
        "served_model_name": "set served_model_name=",
        "max_num_seqs": "set max_ongoing_requests=",
        "num_gpu_blocks_override": "set cache_tokens=",
        "kv_events_config": EVENTS_ARE_OURS,
    },
    only={
        "enable_prefix_caching": (True, "without prefix caching there is nothing to reuse"),
        "data_parallel_size": (1, ONE_CACHE),
        "pipeline_parallel_size": (1, ONE_STAGE),
        "decode_context_parallel_size": (1, "a cache spread over ranks is not followed"),
        "prefill_context_parallel_size": (1, "a cache spread over ranks is not followed"),
    },
)
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout belongs to the command
}
# "auto" pins every replica of a host to the same core; a process less per replica.
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def engine_args(config: AppConfig, model: ResolvedModel, endpoints: Endpoints, cpu: bool) -> Any:
    """AsyncEngineArgs of one replica, which publishes its events at `endpoints`.

    Raises ConfigError when vLLM does not know an argument, or a cache cannot hold one prompt.
    """
    from vllm.config import KVEventsConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    arguments: dict[str, Any] = {
        "model": model.path,
        "load_format": model.load_format,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_ongoing_requests,
        "tensor_parallel_size": config.tensor_parallel_size,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "kv_events_config": KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=endpoints.events,
            replay_endpoint=endpoints.replay,
        ),
    }
    if config.tensor_parallel_size > 1:
        # Serve reserved one bundle a rank; only vLLM's Ray executor takes its ranks from there.
        arguments["distributed_executor_backend"] = "ray"
    if cpu:
        arguments |= {"dtype": _cpu_dtype(), "enforce_eager": True, "block_size": CPU_BLOCK}
    arguments |= config.engine_kwargs
    try:
        args = AsyncEngineArgs(**arguments)
    except TypeError as error:
        raise ConfigError(f"engine_kwargs: vLLM says {error}", param="engine_kwargs") from error
    if cpu or config.cache_tokens:
        _size_cache(args, config, cpu)
    return args


def _cpu_dtype() -> str:
    """bfloat16 only where the CPU has matrix units for it; elsewhere it is slower than float32."""
    import torch

    return "bfloat16" if torch.cpu.get_capabilities().get("amx_bf16") else "float32"


def _size_cache(args: Any, config: AppConfig, cpu: bool) -> None:
    """Fit cache and longest prompt to each other: vLLM wants the cache to hold one request."""
    model = args.create_model_config()
    token_bytes = _token_bytes(model)
    block = args.block_size or 16
    tokens = config.cache_tokens or min(CPU_CACHE_TOKENS, CPU_CACHE_BYTES // token_bytes)
    tokens -= tokens % block
    if config.max_model_len is None:
        args.max_model_len = min(model.max_model_len, tokens)
    elif config.cache_tokens is None:
        tokens = max(tokens, config.max_model_len)
    elif config.max_model_len > tokens:
        raise ConfigError(
            f"max_model_len={config.max_model_len} does not fit cache_tokens="
            f"{config.cache_tokens} ({tokens} in whole blocks): raise cache_tokens",
            param="cache_tokens",
        )
    if config.cache_tokens:
        args.num_gpu_blocks_override = tokens // block + 1  # vLLM keeps one as null block
    if cpu and args.kv_cache_memory_bytes is None:
        args.kv_cache_memory_bytes = (tokens // block + 2) * block * token_bytes


def _token_bytes(model: Any) -> int:
    """Cache bytes of one token: keys and values of every layer."""
    heads, width = model.get_total_num_kv_heads(), model.get_head_size()
    return 2 * model.get_total_num_hidden_layers() * heads * width * model.dtype.itemsize
