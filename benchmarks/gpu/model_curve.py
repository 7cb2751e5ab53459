"""The prefill curve of a model with its real weights, for the simulated engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from benchmarks.gpu import curve as curves
from benchmarks.gpu.engine_run import Clock, EngineOptions, EngineRun
from cp_ray.workers.models import resolve_model

BLOCK = 32


def measure_model(
    model: str,
    device: Literal["cuda", "cpu"],
    *,
    longest: int,
    repeats: int,
    clock: Clock,
    out: Path,
) -> str:
    """Measure every chain up to `longest` tokens, write the data file; a line about it."""
    found = resolve_model(model)
    config = json.loads((Path(found.path) / "config.json").read_text())
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token_bytes = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * width * 4
    tokens = -(-(longest + 64) // BLOCK) * BLOCK
    engine = EngineRun(
        EngineOptions(
            model=found.path,
            vocab=config["vocab_size"],
            device=device,
            max_tokens=tokens,
            load_format=found.load_format,
            step_tokens=2048 if device == "cpu" else 8192,
            blocks=2 * tokens // BLOCK + 1 if device == "cpu" else None,
            cache_bytes=token_bytes * (2 * tokens + 2 * BLOCK) if device == "cpu" else None,
            clock=clock,
        )
    )
    curves.warm_up(engine, min(longest, 1100))
    wanted = curves.chains(longest, repeats)
    samples, _ = curves.measure(engine, tqdm(wanted, disable=None), lambda _: True)
    made = curves.curve_file(engine, model, clock, samples)
    curves.write(out, made)
    return (
        f"{out}: {len(samples)} samples up to {made.longest} tokens, {made.curve}, "
        f"9 of 10 within {made.p90_relative_error:.1%}"
    )
