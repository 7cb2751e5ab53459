"""An SGLang replica and a vLLM replica on one Ray cluster, each in its own environment.

`make test-sglang` names SGLang's Python in CP_RAY_SGLANG_PYTHON; Ray and vLLM are ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
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


def test_what_sglang_evicts_is_reported_through_redis_and_forgotten(bases: dict[str, str]) -> None:
    documents = [f"soon gone {text}" for text in TOPICS[:4]]
    ask(bases["sglang"], documents, model="tiny")
    before = index_state("sglang")["counters"].get("evictions", 0)
    for number in range(14):
        ask(bases["sglang"], [f"flood {number} {text}" for text in TOPICS[:5]], model="tiny")
    until(lambda: index_state("sglang")["counters"].get("evictions", 0) > before)
    again = ask(bases["sglang"], documents[::-1], model="tiny")
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] < 64
    assert again["cp_ray"]["predicted_cached_tokens"] <= 64
    counters = index_state("sglang")["counters"]
    assert counters.get("unknown_evictions", 0) == 0, "nothing was forgotten without need"
    assert counters["audit_mismatches"] == 0


def test_a_replica_whose_engine_process_was_killed_is_replaced(bases: dict[str, str]) -> None:
    """SGLang ends the replica with it; Serve starts another in the same environment."""
    [before] = index_state("sglang")["replicas"]
    scheduler = sglang_scheduler()
    with_it = [*scheduler.parents()[:1], *scheduler.parent().children(recursive=True)]
    scheduler.kill()
    until(lambda: index_state("sglang")["replicas"] not in ([], [before]), seconds=240)
    assert not [process for process in with_it if process.is_running()], "nothing is left of it"
    documents = [f"after it {text}" for text in TOPICS[:4]]
    ask(bases["sglang"], documents, model="tiny")
    again = ask(bases["sglang"], documents[::-1], model="tiny")
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 300
    assert 0 <= cached - again["cp_ray"]["predicted_cached_tokens"] <= 2 * PAGE["sglang"]


def sglang_scheduler() -> psutil.Process:
    processes = psutil.Process().children(recursive=True)
    [found] = [one for one in processes if one.name().startswith("sglang::sched")]
    return found
