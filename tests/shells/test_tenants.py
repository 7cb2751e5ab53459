"""Tenants over HTTP: keys, limits, and that none finds what another has cached."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from cp_ray.config import AppConfig
from cp_ray.core.types import ReplicaId
from cp_ray.errors import ConfigError, Overloaded
from cp_ray.router.auth import Authenticator
from cp_ray.router.quotas import Quotas
from cp_ray.workers.simulated_engine import SimulatedEngine
from tests.shells.http_support import HTTP, PAGE, Bench, MemoryStore, running, wait_for
from tests.shells.test_http_simulated import ToIndex

KEYS = {"acme": "key-of-acme", "bolt": "key-of-bolt other-key-of-bolt", "coil": "key-of-coil"}
TEXTS = [" ".join(f"w{number}x{word}" for word in range(60)) for number in range(3)]
QUESTION = [{"role": "user", "content": "q"}]
PRIVATE: list[dict[str, Any]] = [{"text": text} for text in TEXTS]
PUBLIC: list[dict[str, Any]] = [{"text": text, "public": True} for text in TEXTS]


def over_simulated(**settings: Any) -> Bench:
    config = AppConfig(engine="simulated", model="sim", page_size=PAGE, prefill_tokens_per_s=1e6)
    engine = SimulatedEngine(config)
    bench = Bench(engines={ReplicaId("r0"): engine}, api_keys=KEYS, **settings)
    asyncio.run(engine.start(ToIndex(bench.planner, ReplicaId("r0"))))
    return bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    with running(over_simulated(share_public="acme,bolt")) as it:
        yield it


def post(bench: Bench, key: str, documents: list[dict[str, Any]], **more: Any) -> httpx.Response:
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": "the same question"}],
        "documents": documents,
        "max_tokens": 1,
        **more,
    }
    headers = {"authorization": f"Bearer {key}", "x-cp-ray-explain": "1"}
    return HTTP.post(f"{bench.url}/v1/chat/completions", json=body, headers=headers)


def cached(bench: Bench, key: str, documents: list[dict[str, Any]], **more: Any) -> int:
    response = post(bench, key, documents, **more)
    assert response.status_code == 200, response.text
    answer = response.json()
    found = int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    predicted = answer["cp_ray"]["predicted_cached_tokens"]
    assert predicted <= found, "and the index expects no more"
    return found


def test_one_tenant_finds_nothing_of_anothers_prompt_whatever_salt_it_sends(bench: Bench) -> None:
    assert cached(bench, "key-of-acme", PRIVATE) == 0
    assert cached(bench, "key-of-acme", PRIVATE) > 0
    assert cached(bench, "key-of-bolt", PRIVATE) == 0
    for salt in ("acme", "", "default"):
        system = {"role": "system", "content": f"s{salt} is first"}
        messages = [system, {"role": "user", "content": "the same question"}]
        cached(bench, "key-of-acme", PRIVATE, messages=messages)
        found = cached(bench, "key-of-coil", PRIVATE, messages=messages, cache_salt=salt)
        assert found <= PAGE, "at most its own template"
        assert cached(bench, "key-of-coil", PRIVATE, messages=messages) > 0, "its own alone"


def test_public_documents_are_shared_by_those_who_opted_in_and_by_nobody_else(
    bench: Bench,
) -> None:
    assert cached(bench, "key-of-acme", PUBLIC) == 0
    assert cached(bench, "key-of-bolt", PUBLIC) > 0
    assert cached(bench, "key-of-coil", PUBLIC) == 0, "it did not opt in"


def test_one_private_block_salts_the_whole_prompt(bench: Bench) -> None:
    mixed: list[dict[str, Any]] = [*PUBLIC[:2], PRIVATE[2]]
    assert cached(bench, "key-of-acme", mixed) == 0
    assert cached(bench, "key-of-bolt", mixed) == 0
    assert cached(bench, "key-of-acme", mixed) > 0


def test_a_prompt_without_documents_or_of_a_conversation_is_never_shared(bench: Bench) -> None:
    bare = [{"role": "user", "content": " ".join(TEXTS)}]
    talk = [
        {"role": "user", "content": "something else than that"},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "and?"},
    ]
    cases: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
        ([], {"messages": bare}),
        (PUBLIC[:2], {"messages": talk}),
        (PUBLIC[1:], {"conversation": "c-1"}),
    ]
    for documents, more in cases:
        assert cached(bench, "key-of-acme", documents, **more) <= PAGE
        assert cached(bench, "key-of-bolt", documents, **more) <= PAGE, "at most its own template"


def test_two_tenants_with_one_conversation_share_neither_record_nor_cache() -> None:
    """The same name, history and documents to the letter; Redis is one for both."""
    store = MemoryStore()
    talk: list[dict[str, str]] = [{"role": "user", "content": "the first question"}]
    ask: dict[str, Any] = {"conversation": "c-1", "max_tokens": 3}
    with running(over_simulated(share_public="acme,coil", store=store)) as bench:
        first = post(bench, "key-of-acme", PRIVATE[:2], messages=talk, **ask).json()
        one_tenants = set(store.records)
        talk += [first["choices"][0]["message"], {"role": "user", "content": "and then?"}]
        for key, documents in (("key-of-bolt", PRIVATE), ("key-of-coil", PUBLIC)):
            again = post(bench, key, documents, messages=talk, **ask).json()
            assert again["cp_ray"]["repeated"] == [], "nothing that another tenant was sent"
            found = again["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert found <= PAGE, "at most its own template"
        later = post(bench, "key-of-acme", PRIVATE, messages=talk, **ask).json()
        assert later["cp_ray"]["repeated"] == ["documents.0", "documents.1"], "its own alone"
        assert later["usage"]["prompt_tokens_details"]["cached_tokens"] > 60
        blocks = [step.context for step in bench.dispatcher.steps if step is not None]
        assert not {*blocks[0], *blocks[3]} & {*blocks[1], *blocks[2]}, "no block of both"
        assert one_tenants and not one_tenants & (set(store.records) - one_tenants)
        texts = [key for key in store.records if key.startswith("text:")]
        assert len(texts) > len(TEXTS), "a text of both is kept once for each"


def test_a_prompt_whose_messages_may_hold_private_documents_is_never_shared(bench: Bench) -> None:
    cached(bench, "key-of-acme", PUBLIC)
    assert cached(bench, "key-of-bolt", PUBLIC, lift_documents=True) == 0
    assert cached(bench, "key-of-bolt", PUBLIC) > 0


def test_two_keys_of_one_tenant_are_one_tenant(bench: Bench) -> None:
    assert cached(bench, "key-of-bolt", PRIVATE) == 0
    assert cached(bench, "other-key-of-bolt", PRIVATE) > 0


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer nobody", "Basic key-of-acme"])
def test_without_a_known_key_there_is_only_401(bench: Bench, header: str) -> None:
    headers = {"authorization": header}
    for method, path in (
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/context/plan"),
        ("GET", "/v1/models"),
    ):
        response = HTTP.request(method, f"{bench.url}{path}", headers=headers, json={})
        assert response.status_code == 401, (path, response.text)
        assert "key-of" not in response.text


def test_settings_hold_digests_only() -> None:
    digest = "sha256:" + hashlib.sha256(b"secret-one").hexdigest()
    keys = {"a": "secret-one secret-two", "b": digest}
    given = AppConfig.model_validate({"api_keys": keys})
    typed = AppConfig.model_validate({"api_keys": '{"a": "secret-one secret-two"}'})
    for config in (given, typed, AppConfig.model_validate_json(given.to_json())):
        assert "secret" not in config.to_json()
        assert "secret" not in repr(config)
        assert Authenticator(config).tenant("Bearer secret-two").name == "a"
    assert Authenticator(given).tenant("Bearer secret-one").name == "b", "the last one named"


@pytest.mark.parametrize(
    "settings",
    [
        {"api_keys": {"a": ""}},
        {"api_keys": {"a": "sha256:beef"}},
        {"api_keys": {"default": "k"}},
        {"api_keys": {"public": "k"}},
        {"api_keys": {"a": "k"}, "share_public": "b"},
    ],
)
def test_keys_that_cannot_be_are_refused_at_the_start(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Authenticator(AppConfig.model_validate(settings))


def test_a_setting_that_is_refused_shows_no_secret() -> None:
    for settings in ({"api_keys": {"a": ["hush-hush"]}}, {"redis_url": ["redis://:hush-hush@h"]}):
        with pytest.raises(ValueError) as refused:
            AppConfig.model_validate(settings)
        assert "hush" not in str(refused.value)


def test_requests_a_minute_end_in_429_for_this_tenant_only() -> None:
    with running(over_simulated(tenant_requests_per_minute=3)) as bench:
        answers = [post(bench, "key-of-acme", []) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert int(answers[-1].headers["retry-after"]) in range(1, 61)
        assert answers[-1].json()["error"]["type"] == "overloaded_error"
        assert post(bench, "key-of-bolt", []).status_code == 200


def test_tokens_a_minute_end_in_429() -> None:
    with running(over_simulated(tenant_tokens_per_minute=200)) as bench:
        assert post(bench, "key-of-acme", PRIVATE[:2]).status_code == 200
        refused = post(bench, "key-of-acme", PRIVATE[1:])
        assert refused.status_code == 429
        assert "200 tokens a minute" in refused.json()["error"]["message"]
        assert post(bench, "key-of-acme", []).status_code == 200, "a small one fits"


def test_calls_at_a_time_are_limited_and_given_back_however_they_end() -> None:
    with running(over_simulated(tenant_max_calls=2)) as bench:
        ask = {"stream": True, "max_tokens": 30}
        with ThreadPoolExecutor(6) as pool:
            statuses = list(
                pool.map(lambda _: post(bench, "key-of-acme", [], **ask).status_code, range(6))
            )
        assert statuses.count(200) >= 2
        assert 429 in statuses
        assert post(bench, "key-of-acme", [], model="none").status_code == 404
        with HTTP.stream(
            "POST",
            f"{bench.url}/v1/chat/completions",
            json={"model": "sim", "messages": QUESTION, "stream": True, "max_tokens": 500},
            headers={"authorization": "Bearer key-of-acme"},
        ) as response:
            chunks = response.iter_bytes()  # held: one that is thrown away closes the stream
            next(chunks)
            assert bench.service.quotas.open_calls("acme") == 1
        wait_for(lambda: bench.service.quotas.open_calls("acme") == 0)
        assert post(bench, "key-of-acme", []).status_code == 200


def test_a_bucket_fills_with_time_and_is_shared_by_the_ingresses() -> None:
    now = 0.0
    config = AppConfig(
        tenant_requests_per_minute=60, tenant_tokens_per_minute=6000, ingress_replicas=2
    )
    quotas = Quotas(config, lambda: now)
    for _ in range(30):
        quotas.request("a")
    with pytest.raises(Overloaded) as refused:
        quotas.request("a")
    assert refused.value.retry_after_s == 2
    now = 2.0
    quotas.request("a")
    quotas.tokens("a", 50_000)  # larger than any bucket: it passes once, and is paid off
    with pytest.raises(Overloaded) as refused:
        quotas.tokens("a", 1)
    assert refused.value.retry_after_s > 60
    now = 10_000.0
    quotas.tokens("a", 1)


def test_a_tenant_that_floods_delays_another_by_one_request_and_is_refused_first() -> None:
    bench = Bench(api_keys=KEYS, replicas=1, max_ongoing_requests=1, max_queued_requests=4)
    bench.engine.delay_s = 0.15
    with running(bench), ThreadPoolExecutor(16) as pool:
        flood = [pool.submit(post, bench, "key-of-acme", PRIVATE) for _ in range(5)]
        wait_for(lambda: bench.service._admission._queue.waiting == 4)
        small = pool.submit(post, bench, "key-of-bolt", PRIVATE)
        assert small.result().status_code == 200
        assert sum(answer.done() for answer in flood) <= 3, "most of the flood still waits"
        statuses = [answer.result().status_code for answer in flood]
    assert sorted(statuses) == [200, 200, 200, 200, 503]
    refused = flood[statuses.index(503)].result()
    assert int(refused.headers["retry-after"]) >= 1
