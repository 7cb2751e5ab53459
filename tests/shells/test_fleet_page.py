"""The fleet page over HTTP: what it shows, and to whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cp_ray.config import AppConfig
from cp_ray.core.story import Story
from cp_ray.index_actor.observer import Observer as IndexObserver
from cp_ray.index_actor.recording import Recording
from cp_ray.index_actor.report_reader import ReportReader
from cp_ray.metrics import ALL
from cp_ray.replay.trace import read_trace
from cp_ray.router.endpoints import build_api
from cp_ray.router.fleet_page import Fleet
from cp_ray.router.watch import Observer
from tests.shells.http_support import HTTP, Bench, served

DOCUMENTS = [f"{name} " * 30 for name in ("secret-alpha", "secret-bravo", "secret-carol")]


class Shown:
    """The index actor's observer in this process; `down` as when the actor is."""

    def __init__(self, bench: Bench, record: Path | None = None) -> None:
        self.index = index = bench.planner.index

        async def nowhere() -> Any:
            raise AssertionError("not connected in this test")

        reader = ReportReader(nowhere, index.apply, index.dump_requests)
        recording = Recording(record) if record is not None else None
        self.observer = IndexObserver("demo", index, reader, recording)
        self.recording = recording
        self.down = False

    def tell(self, story: Story) -> None:
        self.observer.tell([story])

    def fleet(self, since: float) -> Awaitable[bytes | None]:
        return _later(None if self.down else self.observer.fleet(since))

    def explain(self, request_id: str) -> Awaitable[tuple[str, bytes] | None]:
        return _later(None if self.down else self.observer.explain(request_id))


async def _later(value: Any) -> Any:
    return value


class Page:
    def __init__(self, url: str, shown: Shown) -> None:
        self.url = url
        self.shown = shown

    def ask(self, key: str = "none", **extra: Any) -> str:
        body = {
            "model": "sim",
            "messages": [{"role": "user", "content": "what is secret?"}],
            "documents": DOCUMENTS,
            **extra,
        }
        answer = HTTP.post(f"{self.url}/v1/chat/completions", json=body, headers=bearer(key))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def get(self, path: str, key: str = "none") -> httpx.Response:
        return HTTP.get(self.url + path, headers=bearer(key))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def opened(tmp_path: Path | None = None, **settings: Any) -> Iterator[Page]:
    bench = Bench(**settings)
    shown = Shown(bench, tmp_path)
    bench.service.observer = Observer("demo", shown.tell)
    api = build_api(bench.service)
    Fleet(bench.config, shown).add_to(api)
    with served(api) as url:
        yield Page(url, shown)


@pytest.fixture
def page() -> Iterator[Page]:
    yield from opened()


@pytest.fixture
def guarded() -> Iterator[Page]:
    keys = {"one": "key-one", "two": "key-two"}
    yield from opened(api_keys=keys, operator_key="key-operator")


def test_the_data_shows_replicas_requests_and_losses(page: Page) -> None:
    page.ask()
    page.ask()
    data = page.get("/fleet/data").json()
    assert [replica["replica"] for replica in data["replicas"]] == ["r0"]
    assert data["replicas"][0]["trust"] == "trusted"
    first, second = reversed(data["recent"])
    assert first["cached_tokens"] == 0
    assert second["cached_tokens"] > 80
    losses = data["losses"]
    assert losses["requests"] == 2
    assert sum(losses["by_cause"].values()) == losses["prompt_tokens"] - losses["cached_tokens"]
    assert data["unexplained_share"] <= 0.01
    (moment, *_) = data["series"]
    assert moment["requests"] >= 1


def test_a_request_is_explained_by_the_id_of_its_answer(page: Page) -> None:
    page.ask()
    answer_id = page.ask(documents=[DOCUMENTS[2], DOCUMENTS[0]])
    told = page.get(f"/fleet/requests/{answer_id}").json()
    assert [step["what"] for step in told["steps"]] == [
        "arrived",
        "planned",
        "first token",
        "answered",
    ]
    blocks = [part for part in told["parts"] if part["kind"] == "block"]
    assert sorted(part["given"] for part in blocks) == [0, 1]
    assert sum(part["cached"] for part in told["parts"]) == told["cached_tokens"]
    annotation = [part["tokens"] for part in told["parts"] if part["kind"] == "order annotation"]
    computed = told["prompt_tokens"] - told["cached_tokens"]
    assert sum(loss["tokens"] for loss in told["losses"]) == computed - sum(annotation)
    assert sum(part["tokens"] for part in told["parts"]) == told["prompt_tokens"]


def test_no_text_leaves_by_any_of_its_routes(page: Page) -> None:
    answer_id = page.ask(conversation="my-conversation")
    shown = page.get("/fleet/data").text + page.get(f"/fleet/requests/{answer_id}").text
    assert "secret" not in shown
    assert "my-conversation" not in shown


def test_with_keys_the_data_is_for_the_operator_only(guarded: Page) -> None:
    assert guarded.get("/fleet/data", "key-operator").status_code == 200
    denied = guarded.get("/fleet/data", "key-one")
    assert denied.status_code == 403
    assert "operator_key" in denied.json()["error"]["message"]
    assert guarded.get("/fleet/data", "key-of-nobody").status_code == 401
    assert guarded.get("/fleet/data").status_code == 401


def test_with_keys_but_no_operator_key_nobody_sees_the_fleet() -> None:
    for page in opened(api_keys={"one": "key-one"}):
        assert page.get("/fleet/data", "key-one").status_code == 403


def test_an_operator_key_alone_closes_the_fleet_and_nothing_else() -> None:
    for page in opened(operator_key="key-operator"):
        page.ask()
        assert page.get("/fleet/data").status_code == 401
        assert page.get("/fleet/data", "key-operator").status_code == 200


def test_a_tenant_sees_its_own_request_and_not_that_there_is_anothers(guarded: Page) -> None:
    own = guarded.ask("key-one")
    assert guarded.get(f"/fleet/requests/{own}", "key-one").status_code == 200
    assert guarded.get(f"/fleet/requests/{own}", "key-operator").status_code == 200
    other = guarded.get(f"/fleet/requests/{own}", "key-two")
    nobodys = guarded.get("/fleet/requests/0123456789", "key-two")
    assert other.status_code == nobodys.status_code == 404
    assert other.json() == nobodys.json()


def test_another_tenants_text_is_lost_to_the_tenant_wall(guarded: Page) -> None:
    guarded.ask("key-one")
    guarded.ask("key-two")
    losses = guarded.get("/fleet/data", "key-operator").json()["losses"]["by_cause"]
    assert losses["tenant_wall"] > 80
    assert losses["order"] == 0


def test_the_page_runs_nothing_but_its_own_script_and_loads_nothing(page: Page) -> None:
    answer = page.get("/fleet")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "src=" not in answer.text.replace("img-src", "")
    assert "https://" not in answer.text


def test_a_down_index_is_a_clear_503(page: Page) -> None:
    page.shown.down = True
    answer = page.get("/fleet/data")
    assert answer.status_code == 503
    assert "index" in answer.json()["error"]["message"]
    assert page.get("/fleet/data?since=x").status_code == 400


def test_a_recording_is_a_trace_without_texts(tmp_path: Path) -> None:
    for page in opened(tmp_path):
        page.ask(conversation="c")
        page.ask(documents=DOCUMENTS[:2])
        assert page.shown.recording is not None
        folder = page.shown.recording.folder
        trace = read_trace(folder)
        assert [len(request.context) for request in trace.requests] == [3, 2]
        assert trace.requests[1].context == trace.requests[0].context[:2]
        assert trace.requests[0].conversation != ""
        text = (folder / "trace.jsonl").read_text()
        assert "secret" not in text
        asked = {part for line in text.splitlines() for part in json.loads(line)["context"]}
        shown = page.get("/fleet/data").text
        assert not [block for block in asked if block in shown], "ids are salted anew"


def test_every_metric_has_a_name_of_ours_and_a_help_text_once() -> None:
    names = [spec.name for spec in ALL]
    assert len(set(names)) == len(names) > 20
    assert all(name.startswith("cp_ray_") for name in names)
    assert all(spec.help for spec in ALL)
    assert all(spec.buckets for spec in ALL if spec.kind == "histogram")


def test_sweeping_and_emitting_go_on_beside_requests(page: Page) -> None:
    page.ask()

    async def once() -> None:
        await page.shown.observer._sweep()
        page.shown.observer._emit()
        page.shown.observer._emit()

    asyncio.run(once())
    data = page.get("/fleet/data").json()
    assert data["branches"][0]["replicas"] == ["r0"]
    assert data["replicas"][0]["held_tokens"] > 80


def test_settings_name_the_operator_key_as_a_secret() -> None:
    config = AppConfig(operator_key="key-operator")  # type: ignore[arg-type]
    assert "key-operator" not in repr(config)
