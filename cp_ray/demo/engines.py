"""The settings under which the demo runs, and what must be there before."""

from __future__ import annotations

import importlib.util

from cp_ray.config import AppConfig, parse_settings
from cp_ray.errors import ConfigError

ARMS = {
    "plain": "Serve's own router, documents in the order given",
    "route": "order kept, replica chosen by prefix",
    "full": "ordering, de-duplication and routing",
}


def engine_config(engine: str, model: str, replicas: int, arm: str) -> AppConfig:
    """The application of one arm: arms differ in `reuse`, and in nothing else."""
    values = {"engine": engine, "model": model, "replicas": replicas, "reuse": arm}
    if engine == "simulated":
        # As fast as a small GPU with a large model, so that times can be seen.
        values |= {"prefill_tokens_per_s": 4000, "page_size": 32, "cache_tokens": 32_768}
    return parse_settings([f"{key}={value}" for key, value in values.items()])


def prepare(engine: str, model: str) -> None:
    """Check what the engine needs, and convert the model once, under a bar of its own.

    Raises ConfigError that says what to install.
    """
    if engine != "vllm":
        return
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed: pip install 'cp-ray[cpu,first-run-model]', or run on the "
            "simulated engine with --engine simulated"
        )
    from cp_ray.workers.models import resolve_model

    resolve_model(model)
