"""An SGLang replica and a vLLM replica on one Ray cluster, each in its own environment.

`make test-sglang` names SGLang's Python in CP_RAY_SGLANG_PYTHON; Ray and vLLM are ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cp_ray.config import AppConfig
from tests.e2e.support import TOPICS, application, ask, index_state, until

PYTHON = os.environ.get("CP_RAY_SGLANG_PYTHON", "")
if not PYTHON:
    pytest.skip("CP_RAY_SGLANG_PYTHON names no Python: make test-sglang", allow_module_level=True)
pytest.importorskip("vllm", reason="vLLM is not installed")

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.sglang, pytest.mark.timeout(600)]
PAGE = {"sglang": 16, "vllm": 32}


@pytest.fixture(scope="module")
def bases(serve_url: str) -> Iterator[dict[str, str]]:
    ours = AppConfig(model="tiny", max_model_len=2048, cache_tokens=4096)
    theirs = AppConfig(
        engine="sglang", engine_python=PYTHON, model="tiny", max_model_len=2048, cache_tokens=4096
    )
    with (
        application(serve_url, "vllm", ours) as vllm,
        application(serve_url, "sglang", theirs) as sglang,
    ):
        until(lambda: len(index_state("vllm")["replicas"]) == 1)
        until(lambda: len(index_state("sglang")["replicas"]) == 1)
        yield {"vllm": vllm, "sglang": sglang}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_shuffled_documents_hit_and_the_prediction_is_within_a_block(
    bases: dict[str, str], engine: str
) -> None:
    documents = [f"first {text}" for text in TOPICS[:4]]
    first = ask(bases[engine], documents, model="tiny")
    again = ask(bases[engine], documents[::-1], model="tiny")
    assert first["system_fingerprint"] == f"cp_ray-{engine}"
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 300
    assert 0 <= cached - again["cp_ray"]["predicted_cached_tokens"] <= 2 * PAGE[engine]
