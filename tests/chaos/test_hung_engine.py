"""A real engine whose process is stopped while its replica lives: `kill -STOP` of vLLM's core."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

pytest.importorskip("vllm")

from cp_ray.config import AppConfig
from tests.e2e.support import TOPICS, application, ask, index_state, until

NAME = "hung"
ANSWER_S = 15.0
REPLICA = f"ray::ServeReplica:{NAME}:Engine"


def cores() -> dict[int, int]:
    """Engine processes of vLLM by their replica's process."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        for child in process.children() if process.name().startswith(REPLICA[:15]) else ():
            if "EngineCore" in child.name() or "EngineCore" in " ".join(child.cmdline()):
                found[process.pid] = child.pid
    return found


@pytest.mark.chaos
@pytest.mark.ray
@pytest.mark.timeout(500)
def test_no_request_is_lost_to_an_engine_that_hangs(serve_url: str) -> None:
    config = AppConfig(
        model="tiny",
        replicas=2,
        cache_tokens=8192,
        health_check_period_s=1.0,
        health_check_timeout_s=ANSWER_S,
    )

    def one(number: int) -> tuple[str, float]:
        began = time.monotonic()
        plain: dict[str, Any] = {"headers": {"x-cp-ray-reuse": "plain"}} if number % 2 else {}
        answer = ask(base, [TOPICS[number % 6]], f"question {number}", model="tiny", **plain)
        return answer["cp_ray"]["replica"], time.monotonic() - began

    with application(serve_url, NAME, config) as base:
        until(lambda: len(index_state(NAME)["replicas"]) == 2, 120)
        before = set(index_state(NAME)["replicas"])
        with ThreadPoolExecutor(16) as pool:
            assert {name for name, _ in pool.map(one, range(16))} == before
            until(lambda: len(cores()) == 2)
            victim = next(iter(cores().values()))
            os.kill(victim, signal.SIGSTOP)
            answered = list(pool.map(one, range(16, 32)))
            later = list(pool.map(one, range(32, 40)))
        assert len({name for name, _ in answered}) == 1, "nobody got an answer from it"
        slowest = max(seconds for _, seconds in answered)
        print(f"slowest answer {slowest:.1f} s")
        assert slowest < ANSWER_S + 30
        assert max(seconds for _, seconds in later) < ANSWER_S, "nobody waits for it any more"
        assert not psutil.pid_exists(victim), "it holds its memory no longer"
        until(lambda: len(set(index_state(NAME)["replicas"]) - before) == 1, 180)
