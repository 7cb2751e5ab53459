"""The real application while it is scaled, and with two ingresses (reported faults 17 and 22)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from ray import serve

from cp_ray.config import AppConfig
from cp_ray.deployment import app
from tests.chaos.load import Load
from tests.e2e.support import application, ask, index_state, until

pytestmark = [pytest.mark.chaos, pytest.mark.ray]
NAME = "scaling"


def config(replicas: int, ingresses: int = 1) -> AppConfig:
    return AppConfig(
        engine="simulated",
        replicas=replicas,
        ingress_replicas=ingresses,
        cpus_per_replica=0.3,
        cache_tokens=16_384,
        prefill_tokens_per_s=20_000,
        decode_tokens_per_s=200,
    )


def scale(replicas: int) -> float:
    """Deploy it with so many engines; seconds until they are there."""
    began = time.monotonic()
    serve.run(app(config(replicas)), name=NAME, route_prefix=f"/{NAME}")
    return time.monotonic() - began


@pytest.mark.timeout(400)
def test_22_scaling_4_8_2_under_load_fails_no_request(serve_url: str) -> None:
    async def main(base: str) -> tuple[Load, float]:
        async with Load(base) as load:
            await asyncio.sleep(3)
            for replicas in (8, 2):
                await asyncio.to_thread(scale, replicas)
                await asyncio.sleep(3)
            await asyncio.to_thread(until, lambda: len(index_state(NAME)["replicas"]) == 2)
            settled_s = load.clock()
            await asyncio.sleep(5)
        return load, settled_s

    with application(serve_url, NAME, config(4)) as base:
        until(lambda: len(index_state(NAME)["replicas"]) == 4)
        load, settled_s = asyncio.run(main(base))
        left = set(index_state(NAME)["replicas"])
    assert [sending for sending in load.log if sending.error is not None] == []
    assert load.lost == []
    used = {sending.replica for sending in load.log}
    assert len(used) > 4, "those that were added were used"
    late = [sending for sending in load.log if sending.from_s > settled_s]
    assert len(late) > 20
    assert {sending.replica for sending in late} <= left, "nothing goes to those that left"
    assert sum(sending.reason == "passthrough" for sending in late) == 0


@pytest.mark.timeout(300)
def test_17_two_ingresses_send_a_conversation_to_one_replica(serve_url: str) -> None:
    """A hundred turns at random ingresses, with a load of others beside them."""
    with application(serve_url, NAME, config(4, ingresses=2)) as base:
        until(lambda: len(index_state(NAME)["replicas"]) == 4)
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
