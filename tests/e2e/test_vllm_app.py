"""The application on real vLLM (tiny random model, CPU): predictions against the engine's count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cp_ray.config import AppConfig
from tests.e2e.support import TOPICS, application, ask, index_state, until

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.timeout(300)]
pytest.importorskip("vllm", reason="vLLM is not installed")
NAME = "real"
PAGE = 32


@pytest.fixture(scope="module")
def base(serve_url: str) -> Iterator[str]:
    config = AppConfig(model="tiny", replicas=1, max_model_len=2048, cache_tokens=4096)
    with application(serve_url, NAME, config) as url:
        until(lambda: len(index_state(NAME)["replicas"]) == 1)
        yield url


def cached(answer: dict[str, dict[str, dict[str, int]]]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_shuffled_documents_hit_and_the_prediction_is_within_a_block(base: str) -> None:
    documents = [f"first {text}" for text in TOPICS[:4]]
    ask(base, documents, model="tiny")
    again = ask(base, documents[::-1], model="tiny")
    assert cached(again) > 300
    assert 0 <= cached(again) - again["cp_ray"]["predicted_cached_tokens"] <= 2 * PAGE


def test_evicted_documents_are_forgotten_by_report(base: str) -> None:
    documents = [f"soon gone {text}" for text in TOPICS[:4]]
    ask(base, documents, model="tiny")
    before = index_state(NAME)["counters"].get("evictions", 0)
    for number in range(14):
        ask(base, [f"flood {number} {text}" for text in TOPICS[:5]], model="tiny")
    until(lambda: index_state(NAME)["counters"].get("evictions", 0) > before)
    again = ask(base, documents[::-1], model="tiny")
    assert cached(again) < 64
    assert again["cp_ray"]["predicted_cached_tokens"] <= 64


def test_a_second_turn_reuses_the_first_ones_prompt(base: str) -> None:
    documents = [f"talk {text}" for text in TOPICS[:3]]
    first = ask(base, documents, "one?", model="tiny", conversation="v-1")
    history = [
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "two?"},
    ]
    second = ask(base, documents[:2], model="tiny", conversation="v-1", messages=history)
    assert second["cp_ray"]["repeated"] == ["documents.0", "documents.1"]
    assert cached(second) >= first["usage"]["prompt_tokens"] - 2 * PAGE
