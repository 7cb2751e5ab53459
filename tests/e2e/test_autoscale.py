"""A fleet grows while its estimated time to first token is above the target, and shrinks after."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import httpx
import pytest
import ray

from cp_ray.config import AppConfig
from cp_ray.named_actor import NAMESPACE, index_prefix, names_with
from cp_ray.store import wire
from tests.e2e.support import application, index_state, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]
NAME = "breathing"
CLIENTS = 6


class Clients:
    """Threads that ask until they are told to stop; whatever was not a whole answer is kept."""

    def __init__(self, base: str) -> None:
        self.failed: list[str] = []
        self.answered = 0
        self._url = f"{base}/v1/chat/completions"
        self._crowd_stops, self._all_stop = threading.Event(), threading.Event()
        self._crowd = [threading.Thread(target=self._flood) for _ in range(CLIENTS)]
        self._talk = threading.Thread(target=self._converse)

    def __enter__(self) -> Clients:
        for thread in (*self._crowd, self._talk):
            thread.start()
        return self

    def end_crowd(self) -> None:
        self._crowd_stops.set()
        for thread in self._crowd:
            thread.join(60)

    def __exit__(self, *_: Any) -> None:
        self.end_crowd()
        self._all_stop.set()
        self._talk.join(60)

    def _flood(self) -> None:
        """Some 1,200 tokens that nobody has sent before: 0.6 s of prefill."""
        while not self._crowd_stops.is_set():
            self._ask([{"role": "user", "content": "which?"}], {})

    def _converse(self) -> None:
        """Conversations of ten turns all along: the next turn is asked of whoever is there."""
        said: list[dict[str, str]] = []
        name = ""
        while not self._all_stop.is_set():
            if len(said) % 20 == 0:
                said, name = [], uuid.uuid4().hex
            said.append({"role": "user", "content": f"turn {len(said)}"})
            answer = self._ask(said, {"conversation": name}, words=20)
            said.append({"role": "assistant", "content": answer})
            time.sleep(0.2)

    def _ask(self, messages: list[dict[str, str]], more: dict[str, str], words: int = 400) -> str:
        documents = [f"{uuid.uuid4().hex} " + "word " * words for _ in range(3)]
        body = {"model": "smollm2", "messages": messages, "documents": documents, "max_tokens": 2}
        try:
            answer = httpx.post(self._url, json=body | more, timeout=120)
            text: str = answer.json()["choices"][0]["message"]["content"]
        except (httpx.HTTPError, ValueError, KeyError) as error:
            self.failed.append(repr(error))
            return ""
        self.answered += 1
        return text


def live() -> set[str]:
    return set(index_state(NAME)["replicas"])


def holders() -> set[str]:
    """Replicas that the index has records of."""
    (name,) = names_with(index_prefix(NAME))
    actor = ray.get_actor(name, NAMESPACE)
    return set(wire.decode(ray.get(actor.records.remote(), timeout=10), dict[str, dict[str, int]]))


def test_a_fleet_grows_under_load_and_shrinks_after_it_and_no_request_fails(serve_url: str) -> None:
    config = AppConfig(
        engine="simulated",
        replicas=1,
        max_replicas=3,
        target_ttft_s=1.0,
        scale_up_after_s=3,
        scale_down_after_s=4,
        prefill_tokens_per_s=2000,
        health_check_period_s=1,
    )
    with application(serve_url, NAME, config) as base:
        until(lambda: len(live()) == 1)
        (first,) = live()
        began = time.monotonic()
        with Clients(base) as clients:
            until(lambda: len(live()) == 3, 120)
            grown, grew_s = live(), time.monotonic() - began
            until(lambda: len(holders()) == 3, 60)
            clients.end_crowd()
            began = time.monotonic()
            until(lambda: len(live()) == 1, 120)
            shrank_s = time.monotonic() - began
            until(lambda: holders() <= live(), 5)
            answered = clients.answered
            until(lambda: clients.answered > answered + 3)
        print(f"1 -> 3 in {grew_s:.1f} s, 3 -> 1 in {shrank_s:.1f} s, {clients.answered} answers")
        assert clients.failed == []
        assert first in grown
        assert index_state(NAME)["counters"].get("audit_mismatches", 0) == 0
