"""The replica that holds a conversation is killed at each of its turns, in real Ray Serve.

A killed conversation is compared with one that is not killed, whose caches are dropped at the same
turn: the same prompts, the same tokens found, so the same arithmetic in the engine. (One with a
warm cache has the same prompts, but prefills them in other pieces, which may round otherwise.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest
import ray
from ray import serve

from cp_ray.config import AppConfig
from tests.e2e.support import application, ask, index_state, until
from tests.references import assert_resolves

NAME = "failover"
TURNS = 10


class Turn(NamedTuple):
    """messages: as rendered for the engine. Tokens of the prompt, and those found cached."""

    messages: Any
    prompt_tokens: int
    cached_tokens: int
    answer: str


def documents(turn: int) -> list[str]:
    """A new one, the turn's before, and a passage that most turns share; one at first.

    Several at first might be reordered, by what the index has heard of the caches until then.
    """
    passage = " ".join(f"boiler{n}" for n in range(40))
    facts = [f"fact {n} " + f"is{n} so{n} " * 20 for n in dict.fromkeys((turn, max(turn - 1, 0)))]
    return [*facts, f"{passage} turn {turn} only"] if turn else facts


def kill(replica: str) -> None:
    ray.kill(ray.get_actor(f"SERVE_REPLICA::{NAME}#Engine#{replica}", "serve"), no_restart=True)


def forgotten() -> int:
    """How often the index has heard that a replica's cache is empty."""
    return int(index_state(NAME)["counters"].get("replicas_forgotten", 0))


def drop_caches(_holder: str = "") -> None:
    """Of all replicas that run, and the index knows it."""
    engines = serve.get_deployment_handle("Engine", NAME)

    def dropped() -> bool:
        heard = forgotten()
        try:
            count = len(engines.broadcast("reset_cache").results())
        except ray.exceptions.ActorDiedError:
            return False  # Serve does not know yet that one was killed
        until(lambda: forgotten() >= heard + count)
        return count == len(index_state(NAME)["replicas"])

    until(dropped)


def talk(base: str, name: str, at: int | None, happens: Callable[[str], None]) -> list[Turn]:
    """One conversation, of whose holder something `happens` before turn `at`."""
    drop_caches()
    messages: list[dict[str, str]] = []
    told: list[Turn] = []
    holder = ""
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"question {turn}?"})
        body = {"model": "smollm2", "messages": messages, "documents": documents(turn)}
        if turn == at:
            happens(holder)
        plan = httpx.post(f"{base}/v1/context/plan", json={**body, "conversation": name}).json()
        answer = ask(base, documents(turn), messages=messages, conversation=name)
        if turn and turn == at and happens is kill:
            assert answer["cp_ray"]["replica"] != holder
        holder = answer["cp_ray"]["replica"]
        reply = answer["choices"][0]["message"]
        usage = answer["usage"]
        found = usage["prompt_tokens_details"]["cached_tokens"]
        told.append(Turn(plan["messages"], usage["prompt_tokens"], found, reply["content"]))
        messages.append(reply)
    return told


def differences(ones: list[Turn], others: list[Turn], *, found: bool) -> list[str]:
    """Turn and field, where they differ; prompts are too long to be shown.

    found: also tokens found, of which the rounding of a real engine's sums depends. A conversation
    may move by itself, where the simulated engine's answer is the same.
    """
    return [
        f"turn {turn}, {field}" + ("" if field == "messages" else f": {this!r}, {that!r}")
        for turn, (one, other) in enumerate(zip(ones, others, strict=True))
        for field, this, that in zip(Turn._fields, one, other, strict=True)
        if this != that and (found or field != "cached_tokens")
    ]


PATIENCE_MS = 2000
"""Of a plan: a busy machine is no reason to do without the index, which would change a prompt."""
SIMULATED = AppConfig(
    engine="simulated",
    replicas=3,
    prefill_tokens_per_s=1500,  # where it costs nothing, a conversation may as well go elsewhere
    decode_tokens_per_s=1000,
    plan_deadline_ms=PATIENCE_MS,
)
VLLM = AppConfig(replicas=2, max_model_len=8192, plan_deadline_ms=PATIENCE_MS)


@pytest.mark.chaos
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_prompts_and_answers_are_those_of_a_conversation_without_kills(serve_url: str) -> None:
    kill_at_each_turn(serve_url, SIMULATED)


@pytest.mark.failover
@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.timeout(1400)
def test_so_they_are_on_real_vllm(serve_url: str) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    kill_at_each_turn(serve_url, VLLM)


def kill_at_each_turn(serve_url: str, config: AppConfig) -> None:
    def whole() -> bool:
        return len(index_state(NAME)["replicas"]) == config.replicas

    with application(serve_url, NAME, config) as base:
        until(whole)
        warm = talk(base, "warm", None, drop_caches)
        for messages, *_ in warm:
            assert_resolves("\n".join(message["content"] for message in messages))
        for at in range(1, TURNS):
            until(whole, 120)
            killed = talk(base, f"killed at {at}", at, kill)
            if config.engine == "vllm":
                assert killed[at].cached_tokens < warm[at].cached_tokens
            dropped = talk(base, f"dropped at {at}", at, drop_caches)
            assert differences(killed, dropped, found=config.engine == "vllm") == []
            assert [turn[:2] for turn in killed] == [turn[:2] for turn in warm]
