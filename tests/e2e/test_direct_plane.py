"""The direct data plane on real Ray, Serve, HAProxy and Redis, with the official client."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from cp_ray.router.handed import HEADER, Refused, Seal
from tests.e2e.direct_plane import KEYS, OPERATOR
from tests.e2e.support import TOPICS, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
ENGINE = "ServeReplica:direct:Engine"


class Plane:
    """The running application."""

    def __init__(self, url: str, process: psutil.Process) -> None:
        self.url = url
        self._process = process

    def client(self, tenant: str = "acme") -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=KEYS.get(tenant, tenant), max_retries=0, timeout=60
        )

    def ask(self, documents: list[str], tenant: str = "acme", **headers: str) -> dict[str, Any]:
        """One explained answer: its own account, or {} where HAProxy did not ask the Router."""
        answer = self.client(tenant).chat.completions.create(
            model="sim",
            messages=[{"role": "user", "content": "which?"}],
            max_tokens=4,
            temperature=0,
            extra_body={"documents": documents},
            extra_headers={"x-cp-ray-explain": "1", **headers},
        )
        found: dict[str, Any] = (answer.model_extra or {})["cp_ray"]
        return found

    def fleet(self) -> dict[str, Any]:
        """What the live page shows."""
        headers = {"authorization": f"Bearer {OPERATOR}"}
        found: dict[str, Any] = httpx.get(f"{self.url}/fleet/data", headers=headers).json()
        return found

    def processes(self, kind: str) -> list[psutil.Process]:
        """Of Ray's, those whose title begins so."""
        found = []
        for child in self._process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "".join(child.cmdline()[:1]).startswith(f"ray::{kind}"):
                    found.append(child)
        return found


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.e2e.direct_plane"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environ, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            made = Plane(process.stdout.readline().strip(), psutil.Process(process.pid))
            assert made.url.startswith("http"), "it did not start"
            # HAProxy learns of the Router a little after Serve says that all is up.
            until(lambda: "routed" in made.ask(["x"])["timing_ms"])
            new = itertools.count()
            texts = TOPICS[:4]
            until(lambda: len({made.ask([f"{next(new)} {t}"])["replica"] for t in texts}) == 2)
            yield made
        finally:
            process.stdin.close()
            process.wait(90)


def fresh(*numbers: int, salt: str) -> list[str]:
    """Documents that no other test has sent."""
    return [f"{salt} {TOPICS[number]}" for number in numbers]


def test_the_same_documents_in_another_order_hit_the_cache(plane: Plane) -> None:
    first = plane.ask(fresh(0, 1, 2, salt="order"))
    again = plane.ask(fresh(2, 0, 1, salt="order"))
    assert first["cached_tokens"] == 0
    assert again["order"] == ["documents.1", "documents.2", "documents.0"]
    assert (again["reason"], again["replica"]) == ("holder", first["replica"])
    assert again["cached_tokens"] > 180
    assert abs(again["cached_tokens"] - again["predicted_cached_tokens"]) <= 16


def test_every_request_goes_where_it_was_planned(plane: Plane) -> None:
    def siblings(number: int) -> list[dict[str, Any]]:
        shared = fresh(0, 1, 2, salt=f"group {number}")
        return [plane.ask([*shared, f"own {number} {n}"]) for n in range(5)]

    with ThreadPoolExecutor(6) as pool:
        groups = list(pool.map(siblings, range(6)))
    answers = [answer for group in groups for answer in group]
    assert all("routed" in answer["timing_ms"] for answer in answers)
    assert {answer["reason"] for answer in answers} <= {"holder", "load"}, "nobody was diverted"
    assert len({answer["replica"] for answer in answers}) == 2
    for answer in answers:
        assert answer["cached_tokens"] >= answer["predicted_cached_tokens"] - 16
    later = [answer for group in groups for answer in group[1:]]
    assert sum(answer["cached_tokens"] > 100 for answer in later) > len(later) / 2


def test_the_official_client_streams_token_by_token(plane: Plane) -> None:
    chunks = list(
        plane.client().chat.completions.create(
            model="sim",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=50,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"documents": fresh(3, salt="stream")},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text.startswith("[simulated]")
    assert len(chunks) > 4, "not all at the end"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 50


def test_keys_reach_the_router_and_tenants_share_nothing(plane: Plane) -> None:
    plane.ask(fresh(4, 5, salt="mine"))
    assert plane.ask(fresh(4, 5, salt="mine"))["cached_tokens"] > 100
    assert plane.ask(fresh(4, 5, salt="mine"), "other")["cached_tokens"] == 0
    with pytest.raises(openai.AuthenticationError, match="API key"):
        plane.ask(fresh(4, salt="mine"), "stranger")


def test_a_client_cannot_hand_a_plan(plane: Plane) -> None:
    forged = Seal("{}").header(Refused(418, {}, {"error": {"message": "forged"}}))
    assert plane.ask(fresh(1, salt="forged"), **{HEADER: forged})["reason"] == "load"


def test_bad_input_names_the_field_and_other_routes_answer(plane: Plane) -> None:
    with pytest.raises(openai.BadRequestError, match="messages"):
        plane.client().chat.completions.create(model="sim", messages=[])
    (model,) = plane.client().models.list().data
    assert model.id == "sim"
    assert httpx.get(f"{plane.url}/healthz").status_code == 200
    plan = httpx.post(
        f"{plane.url}/v1/context/plan",
        json={"model": "sim", "messages": [{"role": "user", "content": "q"}], "documents": ["d"]},
        headers={"authorization": f"Bearer {KEYS['acme']}"},
        timeout=30,
    )
    assert plan.status_code == 200
    assert len(plan.json()["documents"]) == 1


def test_a_plan_that_haproxy_loses_keeps_no_replica_from_the_others(plane: Plane) -> None:
    """As when it does not know the planned replica yet: the Router has no word of it."""
    (router,) = plane.processes("ServeReplica:direct:Router")
    ports = {one.laddr.port for one in router.net_connections() if one.status == "LISTEN"}
    body = {"model": "sim", "messages": [{"role": "user", "content": "lost?"}]}
    shown = {"authorization": f"Bearer {KEYS['acme']}"}
    new = itertools.count()

    def counted(name: str) -> int:
        """Once a plan more has been made."""
        plane.ask(fresh(1, salt=f"lost {next(new)}"))
        return int(plane.fleet()["counters"][name])

    until(lambda: counted("reserved") == 0, 20)  # one may have been lost at the start
    before = counted("plans_lost")
    for port in ports:
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(f"http://127.0.0.1:{port}/internal/route", json=body, headers=shown)
    until(lambda: plane.fleet()["counters"]["reserved"] == 1, 5)
    assert counted("plans_lost") == before, "it may still come"
    until(lambda: counted("plans_lost") == before + 1, 30)
    until(lambda: counted("reserved") == 0, 5)
    assert counted("plans_lost") == before + 1, "all others have arrived"


def test_without_the_index_requests_are_answered_and_planned_again_later(plane: Plane) -> None:
    (index,) = plane.processes("IndexActor")
    index.kill()
    for number in range(6):
        answer = plane.ask(fresh(number, salt=f"no index {number}"))
        assert answer["reason"] in ("passthrough", "load", "holder", "spill")
    until(lambda: plane.ask(fresh(0, 1, salt="index back"))["reason"] == "holder")


def test_when_a_replica_dies_the_others_answer_and_it_comes_back(plane: Plane) -> None:
    """Those that it was answering are lost: nobody stands between it and their clients."""
    killed = plane.processes(ENGINE)[0]
    killed.kill()
    answered = 0
    for number in range(40):
        try:
            plane.ask(fresh(number % 6, salt=f"after {number}"))
            answered += 1
        except (openai.APIStatusError, openai.APIConnectionError):
            continue
    assert answered >= 30
    until(lambda: len(plane.processes(ENGINE)) == 2, 120)
    until(lambda: plane.ask(fresh(0, salt="healed"))["timing_ms"].get("routed", 0) > 0)
