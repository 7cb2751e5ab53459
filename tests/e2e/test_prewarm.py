"""A dead replica's successor is warmed, and its conversations go on elsewhere, prefilled."""

from __future__ import annotations

import os
import signal

import pytest
import ray

from cp_ray.config import AppConfig
from cp_ray.core.prewarm import MIN_USES
from cp_ray.named_actor import NAMESPACE, index_prefix, names_with
from cp_ray.store import wire
from tests.e2e.support import TOPICS, application, ask, index_state, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]
NAME = "warmed"


def records() -> dict[str, dict[str, int]]:
    """Ended requests of each replica, and the tokens they have left, as the index believes."""
    (name,) = names_with(index_prefix(NAME))
    actor = ray.get_actor(name, NAMESPACE)
    return wire.decode(ray.get(actor.records.remote(), timeout=10), dict[str, dict[str, int]])


def pid_of(replica: str) -> int:
    import ray._private.state as ray_state

    name = f"SERVE_REPLICA::{NAME}#Engine#{replica}"
    (pid,) = [int(one["Pid"]) for one in ray_state.actors().values() if one["Name"] == name]
    return pid


def test_a_dead_replicas_place_is_warmed_and_its_conversations_are_handed_over(
    serve_url: str,
) -> None:
    config = AppConfig(
        engine="simulated", replicas=2, prewarm=True, health_check_period_s=1, reuse="full"
    )
    with application(serve_url, NAME, config) as base:
        until(lambda: len(index_state(NAME)["replicas"]) == 2)
        for question in range(MIN_USES):
            for topic in range(4):
                documents = [f"{TOPICS[topic]} {block}" for block in range(3)]
                ask(base, documents, f"{question}?")
        before = set(index_state(NAME)["replicas"])
        until(lambda: sum(map(len, records().values())) == 4 * MIN_USES)
        held = records()
        idle = min(before, key=lambda replica: len(held.get(replica, ())))
        os.kill(pid_of(idle), signal.SIGKILL)
        until(lambda: len(set(index_state(NAME)["replicas"]) - before) == 1, 90)
        (joined,) = set(index_state(NAME)["replicas"]) - before
        until(lambda: index_state(NAME)["counters"].get("warmed", 0) >= 1)
        until(lambda: bool(records().get(joined)))
        assert max(records()[joined].values()) > 180
        counters = index_state(NAME)["counters"]
        assert counters["warmed_tokens"] > 180
        conversation_goes_on(base)
        assert index_state(NAME)["counters"].get("audit_mismatches", 0) == 0


def conversation_goes_on(base: str) -> None:
    """Its replica is killed; the other one, idle, has prefilled what was said when it goes on."""
    said = [{"role": "user", "content": "first?"}]
    documents = [f"{TOPICS[5]} {block} of a talk" for block in range(3)]
    first = ask(base, documents, messages=said, conversation="talk")
    home = first["cp_ray"]["replica"]
    until(lambda: any(home == replica for replica in records()))
    os.kill(pid_of(home), signal.SIGKILL)
    until(lambda: index_state(NAME)["counters"].get("handed_over", 0) >= 1)
    said += [first["choices"][0]["message"], {"role": "user", "content": "second?"}]
    second = ask(base, [], messages=said, conversation="talk")["cp_ray"]
    assert second["replica"] != home
    assert second["predicted_cached_tokens"] > 150
    assert second["cached_tokens"] >= second["predicted_cached_tokens"]
