"""New settings on a running application: `serve deploy` again, under load."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import ray
from ray import serve

from cp_ray.config import AppConfig
from cp_ray.deployment import app
from cp_ray.named_actor import NAMESPACE, index_prefix, names_with
from tests.e2e.support import TOPICS, application, ask, client, index_state, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]
NAME = "rolled"
OLD = AppConfig(engine="simulated", replicas=2, decode_tokens_per_s=200)
NEW = AppConfig(engine="simulated", replicas=2, decode_tokens_per_s=400)


class Load:
    """Four clients that ask without a pause, whole answers and streams in turn."""

    def __init__(self, base: str) -> None:
        self.answered = 0
        self.faults: list[str] = []
        self._base = base
        self._stop = threading.Event()
        self._clients = [threading.Thread(target=self._run, args=(n,)) for n in range(4)]

    def __enter__(self) -> Load:
        for one in self._clients:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for one in self._clients:
            one.join()

    def _run(self, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            try:
                self._ask(f"{number}.{count}?", [TOPICS[count % 3], TOPICS[3 + number % 3]], count)
                self.answered += 1
            except Exception as error:  # noqa: BLE001 - whatever a client sees is a fault
                self.faults.append(repr(error))

    def _ask(self, question: str, documents: list[str], count: int) -> None:
        if count % 2:
            ask(self._base, documents, question)
            return
        chunks = list(
            client(self._base).chat.completions.create(
                model="smollm2",
                messages=[{"role": "user", "content": question}],
                max_tokens=40,
                stream=True,
                extra_body={"documents": documents},
            )
        )
        assert chunks[-1].choices[0].finish_reason == "length"


def states() -> dict[str, dict[str, Any]]:
    """What each living index actor of the application says of itself."""
    found = {}
    for name in names_with(index_prefix(NAME)):
        try:
            found[name] = ray.get(ray.get_actor(name, NAMESPACE).state.remote(), timeout=10)
        except (ray.exceptions.RayError, ValueError):
            continue
    return found


def test_new_settings_roll_out_under_load_without_a_failed_request(serve_url: str) -> None:
    with application(serve_url, NAME, OLD) as base:
        until(lambda: len(index_state(NAME)["replicas"]) == 2)
        (old_index,) = names_with(index_prefix(NAME))
        before = set(index_state(NAME)["replicas"])

        def rolled() -> bool:
            new = [state for name, state in states().items() if name != old_index]
            return any(
                len(state["replicas"]) == 2 and not before & set(state["replicas"]) for state in new
            )

        with Load(base) as load:
            serve.run(app(NEW), name=NAME, route_prefix=f"/{NAME}")
            until(rolled, 120)
        assert load.faults == []
        assert load.answered > 10

        ask(base, [TOPICS[0], TOPICS[1]], "first?")
        again = ask(base, [TOPICS[1], TOPICS[0]], "again?")["cp_ray"]
        assert again["reason"] == "holder", "the new index plans"
        assert again["replica"] not in before
        until(lambda: old_index not in names_with(index_prefix(NAME)), 90)
        (index,) = states().values()
        assert again["replica"] in index["replicas"]
