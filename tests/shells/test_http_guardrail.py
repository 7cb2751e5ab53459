"""The guardrail over HTTP: canaries keep their order, scores switch a route off for good."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from cp_ray.core.guardrail import is_canary
from tests.shells.http_support import HTTP, Bench, MemoryStore, running

DOCUMENTS = [{"id": f"kb/{n}", "text": f"All about topic {n}. " * 5} for n in range(3)]
GIVEN = [document["id"] for document in DOCUMENTS]
SETTINGS: dict[str, Any] = {"canary_share": 0.5, "guardrail_loss": 0.0}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def bench(store: MemoryStore) -> Iterator[Bench]:
    with running(Bench(store=store, **SETTINGS)) as it:
        yield it


def ask(bench: Bench, *, turned: bool = True, **more: Any) -> dict[str, Any]:
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": "why?"}],
        "documents": DOCUMENTS[::-1] if turned else DOCUMENTS,
        **more,
    }
    headers = {"x-cp-ray-explain": "1"}
    url = f"{bench.url}/v1/chat/completions"
    answer: dict[str, Any] = HTTP.post(url, json=body, headers=headers).json()
    return answer


def turned_after_given(bench: Bench, edition: int, **more: Any) -> tuple[dict[str, Any], bool]:
    """Ask twice about documents of this edition alone: as given, then turned; (second, moved)."""
    documents = [{**d, "text": f"Edition {edition}. {d['text']}"} for d in DOCUMENTS]
    ask(bench, documents=documents, **more)
    answer = ask(bench, documents=documents[::-1], **more)
    order = answer["cp_ray"]["order"]
    assert order in (GIVEN, GIVEN[::-1])
    return answer, order == GIVEN


def rate(bench: Bench, answer: dict[str, Any], score: float) -> dict[str, Any]:
    url = f"{bench.url}/v1/score"
    told: dict[str, Any] = HTTP.post(url, json={"id": answer["id"], "score": score}).json()
    return told


def canary(answer: dict[str, Any]) -> bool:
    return is_canary(answer["id"].removeprefix("chatcmpl-"), 0.5)


def test_canaries_keep_the_order_given_and_others_are_reordered(bench: Bench) -> None:
    moved: dict[bool, set[bool]] = {True: set(), False: set()}
    for edition in range(24):
        answer, was_moved = turned_after_given(bench, edition)
        moved[canary(answer)].add(was_moved)
    assert moved == {True: {False}, False: {True}}


def test_a_route_that_loses_is_switched_off_for_all_and_later_ingresses(
    bench: Bench, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    told: dict[str, Any] = {"reordering": True}
    with caplog.at_level(logging.WARNING, "cp_ray.router.guardrails"):
        for _ in range(400):
            answer = ask(bench)
            told = rate(bench, answer, 1.0 if canary(answer) else 0.0)
            if not told["reordering"]:
                break
    assert told["reordering"] is False
    (audit,) = [record.message for record in caplog.records]
    assert "guardrail route=default/ reordering=OFF without=1.0000/" in audit
    assert not any(turned_after_given(bench, edition)[1] for edition in range(8))
    with running(Bench(store=store, **SETTINGS)) as later:
        assert not any(turned_after_given(later, edition)[1] for edition in range(6))
        others = [turned_after_given(later, edition, agent="other")[1] for edition in range(6, 18)]
        assert any(others), "another route goes on"


def test_a_score_counts_once_and_only_from_its_tenant(store: MemoryStore) -> None:
    keys = {"acme": "k1", "bolt": "k2"}
    with running(Bench(store=store, api_keys=keys, **SETTINGS)) as bench:

        def post(path: str, key: str, body: dict[str, Any]) -> Any:
            headers = {"authorization": f"Bearer {key}"}
            return HTTP.post(f"{bench.url}{path}", json=body, headers=headers)

        messages = [{"role": "user", "content": "why?"}]
        body = {"model": "sim", "messages": messages, "documents": DOCUMENTS}
        name = post("/v1/chat/completions", "k1", body).json()["id"]
        score = {"id": name, "score": 1}
        assert post("/v1/score", "k2", score).status_code == 404
        assert post("/v1/score", "k1", score).json()["route"] == "acme/"
        assert post("/v1/score", "k1", score).status_code == 404
        assert post("/v1/score", "k1", {"id": name, "score": 2}).status_code == 400
        assert post("/v1/score", "k1", {"score": 1}).json()["error"]["param"] == "id"


def test_without_a_canary_share_there_is_nothing_to_score() -> None:
    with running(Bench()) as bench:
        answer = ask(bench)
        assert "canary_share" in rate(bench, answer, 1.0)["error"]["message"]
