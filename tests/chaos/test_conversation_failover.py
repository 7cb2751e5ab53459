"""The replica that holds a conversation is killed at each of its turns, in real Ray Serve."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import ray

from cp_ray.config import AppConfig
from tests.e2e.support import application, ask, index_state, until
from tests.references import assert_resolves

NAME = "failover"
TURNS = 10


def documents(turn: int) -> list[str]:
    passage = " ".join(f"boiler{n}" for n in range(40))
    facts = [f"fact {n} " + f"is{n} so{n} " * 20 for n in dict.fromkeys((turn, max(turn - 1, 0)))]
    return [*facts, f"{passage} turn {turn} only"]


def kill(replica: str) -> None:
    ray.kill(ray.get_actor(f"SERVE_REPLICA::{NAME}#Engine#{replica}", "serve"), no_restart=True)


def talk(base: str, name: str, kill_at: int | None) -> list[tuple[Any, int, str]]:
    """(messages as rendered, prompt tokens, answer) of each turn."""
    messages: list[dict[str, str]] = []
    told = []
    holder = ""
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"question {turn}?"})
        body = {"model": "smollm2", "messages": messages, "documents": documents(turn)}
        if turn == kill_at:
            kill(holder)
        plan = httpx.post(f"{base}/v1/context/plan", json={**body, "conversation": name}).json()
        answer = ask(base, documents(turn), messages=messages, conversation=name)
        if turn == kill_at:
            assert answer["cp_ray"]["replica"] != holder
        holder = answer["cp_ray"]["replica"]
        reply = answer["choices"][0]["message"]
        told.append((plan["messages"], answer["usage"]["prompt_tokens"], reply["content"]))
        messages.append(reply)
    return told


@pytest.mark.chaos
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_prompts_and_answers_are_those_of_a_conversation_without_kills(serve_url: str) -> None:
    config = AppConfig(engine="simulated", replicas=3, decode_tokens_per_s=1000)
    with application(serve_url, NAME, config) as base:
        until(lambda: len(index_state(NAME)["replicas"]) == 3)
        control = talk(base, "control", None)
        for messages, _, _ in control:
            text = "\n".join(message["content"] for message in messages)
            assert_resolves(text)
        for kill_at in range(1, TURNS):
            assert talk(base, f"killed at {kill_at}", kill_at) == control
            until(lambda: len(index_state(NAME)["replicas"]) == 3)
