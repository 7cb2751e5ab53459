"""A real application on the session's Serve, and what tests need to look inside it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import ray
from ray import serve

from cp_ray.config import AppConfig
from cp_ray.deployment import app
from cp_ray.named_actor import NAMESPACE, index_prefix, names_with

TOPICS = [f"{name} " * 60 for name in ("alpha", "bravo", "carol", "delta", "echo", "foxtrot")]


@contextlib.contextmanager
def application(url: str, name: str, config: AppConfig) -> Iterator[str]:
    """Base URL of the deployed application; deleted at the end."""
    serve.run(app(config), name=name, route_prefix=f"/{name}")
    base = f"{url}/{name}"
    until(lambda: httpx.get(f"{base}/readyz", timeout=30).status_code == 200)
    try:
        yield base
    finally:
        serve.delete(name)


def client(base: str) -> openai.OpenAI:
    """The official client, which repeats nothing by itself."""
    return openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=60)


def ask(base: str, documents: list[Any], question: str = "which?", **extra: Any) -> dict[str, Any]:
    """One explained, unstreamed answer as JSON."""
    model = extra.pop("model", "smollm2")
    messages = extra.pop("messages", [{"role": "user", "content": question}])
    headers = {"x-cp-ray-explain": "1", **extra.pop("headers", {})}
    response = httpx.post(
        f"{base}/v1/chat/completions",
        json={"model": model, "messages": messages, "documents": documents, "max_tokens": 4}
        | {"temperature": 0}
        | extra,
        headers=headers,
        timeout=60,
    )
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def index_state(name: str) -> dict[str, Any]:
    """What the application's index actor says of itself; nothing while it restarts."""
    nothing = {"replicas": [], "redis_connected": False, "counters": {}}
    try:
        (found,) = names_with(index_prefix(name))
        state: dict[str, Any] = ray.get(ray.get_actor(found, NAMESPACE).state.remote(), timeout=10)
    except (ray.exceptions.RayError, ValueError):
        return nothing
    return state


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that a background process does."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
