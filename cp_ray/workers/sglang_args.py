"""AppConfig -> arguments of SGLang's engine; what breaks the contract is refused."""

from __future__ import annotations

import json
from typing import Any

from cp_ray.config import AppConfig
from cp_ray.workers.engine_kwargs import EVENTS_ARE_OURS, ONE_CACHE, ONE_STAGE, Refusals
from cp_ray.workers.event_follower import Endpoints
from cp_ray.workers.models import ResolvedModel

CPU_CACHE_TOKENS = 32_768
"""Tokens of the cache where there is no GPU and cache_tokens is not set."""
EVENTS_EVERY = 8
"""Decode steps between two reports of evictions while nothing is prefilled; SGLang's own is 40."""

REFUSED = Refusals(
    elsewhere={
        "model_path": "set model=",
        "context_length": "set max_model_len=",
        "tp_size": "set tensor_parallel_size=",
        "tensor_parallel_size": "set tensor_parallel_size=",
        "served_model_name": "set served_model_name=",
        "max_running_requests": "set max_ongoing_requests=",
        "max_total_tokens": "set cache_tokens=",
        "page_size": "set page_size=",
        "kv_events_config": EVENTS_ARE_OURS,
        "incremental_streaming_output": "cp_ray reads the answer piece by piece",
    },
    only={
        "disable_radix_cache": (False, "without the radix cache there is nothing to reuse"),
        "dp_size": (1, ONE_CACHE),
        "data_parallel_size": (1, ONE_CACHE),
        "pp_size": (1, ONE_STAGE),
        "nnodes": (1, "a replica stays on one host"),
        "tokenizer_worker_num": (1, "one process sends a replica's requests"),
        "speculative_algorithm": (None, "its cache is keyed by pairs of tokens"),
        "enable_hierarchical_cache": (False, "hits from host memory are not followed"),
        "disaggregation_mode": ("null", "prefill and decode apart are not built"),
    },
)
CPU_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def engine_args(
    config: AppConfig, model: ResolvedModel, endpoints: Endpoints, cpu: bool
) -> dict[str, Any]:
    """Arguments of `sglang.Engine` for one replica, which publishes its events at `endpoints`.

    cpu: there is no GPU. SGLang does not support that without its own CPU kernels: plain torch,
    for tests (docs/engines.md).
    """
    arguments: dict[str, Any] = {
        "model_path": model.path,
        "load_format": model.load_format,
        "context_length": config.max_model_len,
        "max_running_requests": config.max_ongoing_requests,
        "max_total_tokens": config.cache_tokens,
        "tp_size": config.tensor_parallel_size,
        "page_size": config.page_size,
        "incremental_streaming_output": True,
        "decode_log_interval": EVENTS_EVERY,
        "log_level": "error",
        "kv_events_config": json.dumps(
            {
                "publisher": "zmq",
                "endpoint": endpoints.events,
                "replay_endpoint": endpoints.replay,
                "bind": True,
            }
        ),
    }
    if cpu:
        arguments |= {
            "device": "cpu",
            "dtype": "float32",
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "disable_cuda_graph": True,
            "disable_overlap_schedule": True,
            "mem_fraction_static": 0.3,
            "max_total_tokens": config.cache_tokens or CPU_CACHE_TOKENS,
        }
    return arguments | config.engine_kwargs
