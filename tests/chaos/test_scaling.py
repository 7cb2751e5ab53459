"""The real application while it is scaled, checked, and with two ingresses: faults 5, 17 and 22."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from ray import serve

from cp_ray.config import AppConfig
from cp_ray.demo.cpu import pids
from tests.chaos.load import Load
from tests.e2e.support import application, ask, index_state, until

pytestmark = [pytest.mark.chaos, pytest.mark.ray]
NAME = "scaling"
WITHIN_S = 10.0
LATE = 25
"""Requests looked at when all is settled."""


def config(replicas: int, ingresses: int = 1, **settings: Any) -> AppConfig:
    speed = {"prefill_tokens_per_s": 20_000, "decode_tokens_per_s": 200, "cache_tokens": 16_384}
    return AppConfig.model_validate(
        {
            "engine": "simulated",
            "replicas": replicas,
            "ingress_replicas": ingresses,
            "cpus_per_replica": 0.3,
            **speed,
            **settings,
        }
    )


def scale(replicas: int) -> None:
    """Tell Serve, and wait for nothing: what `serve deploy` of an edited file sends."""
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    application = {
        "name": NAME,
        "route_prefix": f"/{NAME}",
        "import_path": "cp_ray.app",
        "args": config(4).model_dump(exclude_defaults=True),
        "deployments": [{"name": "Engine", "num_replicas": replicas}],
    }
    _get_global_client().deploy_apps(
        ServeDeploySchema.model_validate({"applications": [application]})
    )


@contextlib.contextmanager
def deployed(url: str) -> Iterator[str]:
    """By a Serve config file, as in production."""
    scale(4)
    base = f"{url}/{NAME}"
    try:
        until(lambda: is_ready(base), 120)
        until(lambda: len(live()) == 4)
        yield base
    finally:
        serve.delete(NAME)


def is_ready(base: str) -> bool:
    """Serve keeps a question waiting while the application's first Router starts."""
    with contextlib.suppress(httpx.TimeoutException):
        return httpx.get(f"{base}/readyz", timeout=10).status_code == 200
    return False


def live() -> set[str]:
    return set(index_state(NAME)["replicas"])


def begun() -> int:
    """Replicas that Serve runs, or is bringing up."""
    states = serve.status().applications[NAME].deployments["Engine"].replica_states
    return sum(states.get(state, 0) for state in ("RUNNING", "STARTING"))


class Scaled:
    """Under load: 4 -> 8, until all are there, -> 4; then -> 8 -> 2 within 10 s, and what was seen.

    Eight may or may not have started within ten seconds: a busy machine takes longer. asked_s: of
    the last two, on the load's clock.
    """

    def __init__(self) -> None:
        self.first: set[str] = set()
        self.grown: set[str] = set()
        self.most: set[str] = set()
        self.begun = 0
        self.last: set[str] = set()
        self.asked_s: list[float] = []
        self.settled_s = 0.0

    async def run(self, load: Load) -> None:
        self.first = await asyncio.to_thread(live)
        await asyncio.sleep(3)
        self.grown = await self._until(8)
        await asyncio.sleep(3)
        await self._until(4)
        await self._scale(load, 8)
        while (
            load.clock() - self.asked_s[0] < WITHIN_S - 4
        ):  # one look takes seconds where the machine is busy
            self.most |= await asyncio.to_thread(live)
            self.begun = max(self.begun, await asyncio.to_thread(begun))
            await asyncio.sleep(0.2)
        await self._scale(load, 2)
        self.last = await self._until(2)
        self.settled_s = load.clock()
        while sum(one.from_s > self.settled_s for one in load.log) < LATE:  # noqa: ASYNC110
            await asyncio.sleep(0.2)

    async def _scale(self, load: Load, replicas: int) -> None:
        await asyncio.to_thread(scale, replicas)
        self.asked_s.append(load.clock())

    async def _until(self, replicas: int) -> set[str]:
        await asyncio.to_thread(scale, replicas)
        await asyncio.to_thread(until, lambda: len(live()) == replicas, 120)
        return await asyncio.to_thread(live)


@pytest.mark.timeout(400)
def test_22_scaling_4_8_2_in_10_s_under_load_fails_no_request(serve_url: str) -> None:
    """By the client's log: each request was sent once and answered once, with its whole text."""
    scaled = Scaled()

    async def main(base: str) -> Load:
        async with Load(base) as load:
            await scaled.run(load)
        return load

    with deployed(serve_url) as base:
        before, index_before = pids(), index_state(NAME)["pid"]
        load = asyncio.run(main(base))
        after, index_after = pids(), index_state(NAME)["pid"]
    assert scaled.asked_s[1] - scaled.asked_s[0] < WITHIN_S
    assert [sending for sending in load.log if sending.error is not None] == []
    assert load.lost == []
    sent = Counter(sending.request for sending in load.log)
    assert set(sent.values()) == {1}, "nothing is sent twice, so nothing is answered twice"
    assert sorted(sent) == list(range(1, max(sent) + 1)), (
        "every request that was made has an answer"
    )
    used = {sending.replica for sending in load.log}
    print(
        f"{len(load.log)} requests; {scaled.begun} replicas begun, {len(scaled.most)} up within "
        f"{WITHIN_S:.0f} s, {len(used)} used; 2 after {scaled.settled_s - scaled.asked_s[1]:.1f} s"
    )
    assert scaled.begun == 8
    assert scaled.first < scaled.grown, "those that were there stay: growing replaces nobody"
    assert used - scaled.first, "those that were added were used"
    assert index_before == index_after, "the index runs on, and knows what it knew"
    for kind in (f"{NAME} Router", "proxy"):
        assert before[kind] == after[kind], f"the {kind} runs on"
    late = [sending for sending in load.log if sending.from_s > scaled.settled_s]
    assert len(late) >= LATE
    assert {sending.replica for sending in late} <= scaled.last, "nothing goes to those that left"
    assert sum(sending.reason == "passthrough" for sending in late) == 0


@pytest.mark.timeout(300)
def test_17_two_ingresses_send_a_conversation_to_one_replica(serve_url: str) -> None:
    """A hundred turns at random ingresses, with a load of others beside them."""
    with application(serve_url, NAME, config(4, ingresses=2)) as base:
        until(lambda: len(live()) == 4)
        messages: list[dict[str, Any]] = []
        chosen = Counter[str]()
        for turn in range(100):
            messages.append({"role": "user", "content": f"turn {turn}?"})
            ask(base, [f"other {turn} " + "word " * 60], f"question {turn}")
            answer = ask(
                base, [f"fact {turn} " + "is so " * 20], messages=messages, conversation="one"
            )
            chosen[answer["cp_ray"]["replica"]] += 1
            messages.append(answer["choices"][0]["message"])
    assert chosen.most_common(1)[0][1] >= 95, chosen


def running(base: str) -> dict[str, int]:
    """Requests under way on each replica, as whichever ingress answers knows it."""
    rows = httpx.get(f"{base}/fleet/data", timeout=30).json()["replicas"]
    return {row["replica"]: row["running"] for row in rows}


async def stream(base: str, number: int, tokens: int) -> str:
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": f"open {number}"}],
        "max_tokens": tokens,
        "stream": True,
    }
    async with httpx.AsyncClient(timeout=120) as http:
        return (await http.post(f"{base}/v1/chat/completions", json=body)).text


@pytest.mark.timeout(300)
def test_5_and_17_health_checks_leave_the_load_and_every_ingress_sees_all_of_it(
    serve_url: str,
) -> None:
    """Twelve streams of 10 s by two ingresses; Serve looks after everybody's health meanwhile."""
    settings = config(2, ingresses=2, health_check_period_s=0.5, decode_tokens_per_s=10)

    async def main(base: str) -> None:
        tasks = [asyncio.create_task(stream(base, number, 100)) for number in range(12)]
        await asyncio.sleep(3)
        began, seen = time.monotonic(), list[dict[str, int]]()
        while time.monotonic() - began < 4:
            seen.append(await asyncio.to_thread(running, base))
            await asyncio.sleep(0.1)
        assert all(counts == seen[0] for counts in seen), "whoever is asked, and at any moment"
        assert sorted(seen[0].values()) == [6, 6]
        answers = await asyncio.gather(*tasks)
        assert all(answer.count(" token") == 99 for answer in answers)

    with application(serve_url, NAME, settings) as base:
        until(lambda: len(live()) == 2)
        asyncio.run(main(base))
        until(lambda: set(running(base).values()) == {0}, 5)
