"""The soak's verdict: what grows, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable

import httpx
import pytest

from cp_ray.demo import soak_load
from cp_ray.demo.growth import Sample, growth
from cp_ray.demo.soak import Soak
from cp_ray.demo.soak_load import Clients


def samples(mb_per_minute: float, noise: float, files: int = 0) -> list[Sample]:
    rng = random.Random(0)
    return [
        (
            5.0 * n,
            {"router": (300 + mb_per_minute * n / 12 + rng.gauss(0, noise), 40 + files * n // 120)},
        )
        for n in range(120)
    ]


def soak(made: list[Sample], **more: int) -> Soak:
    left = {"errors": 0, "redis_keys": 6, "reserved": 0, "late": 0, "beside": 0} | more
    return Soak(
        warm_minutes=2,
        minutes=10,
        requests=1000,
        requests_per_s=2,
        errors=left["errors"],
        late=left["late"],
        control_faults=left["beside"],
        ttft_p50_ms=1,
        ttft_p99_ms=2,
        growth=growth(made, 1000),
        full_before={"index: records": (5, 5)},
        full_after={"index: records": (5, 5)},
        redis_keys=left["redis_keys"],
        reserved=left["reserved"],
        records=5,
    )


def test_noise_is_no_growth() -> None:
    found = soak(samples(0.0, noise=3.0))
    assert found.faults == []
    assert abs(found.growth["router"].mb_per_minute) < 1


def test_the_interval_holds_the_slope_though_neighbours_resemble_each_other() -> None:
    """Memory wanders: of a hundred walks without a drift about five may seem to have one."""
    held = 0
    for seed in range(100):
        rng, level, made = random.Random(seed), 0.0, []
        for n in range(120):
            level = 0.8 * level + rng.gauss(0, 1)  # a memory of half a minute
            made.append((5.0 * n, {"router": (300 + level, 40)}))
        found = growth(made, 1000)["router"]
        held += abs(found.mb_per_minute) <= found.plus_minus
    assert held >= 88


def test_less_than_an_id_a_request_is_no_growth_and_more_is() -> None:
    made = [(5.0 * n, {"redis": (100 + 0.05 * n / 12, 9)}) for n in range(120)]
    found = growth(made, 1000)["redis"]
    assert found.mb_per_minute > found.plus_minus, "it is sure"
    assert (found.verdict, round(found.least_bytes)) == ("flat", 50)
    assert growth(made, 500)["redis"].verdict == "grows", "a hundred bytes a request"
    tiny = [(at, {"redis": (found["redis"][0] - 98, 9)}) for at, found in made]
    assert growth(tiny, 1000)["redis"].verdict == "flat", "however small the process is"


def test_what_is_too_noisy_to_tell_is_a_fault() -> None:
    (fault,) = soak(samples(0.0, noise=60.0)).faults
    assert "may grow or not" in fault


def test_a_leak_of_memory_or_of_files_is_a_fault() -> None:
    leak = soak(samples(3.0, noise=1.0))
    assert "router grows by" in leak.faults[0]
    assert abs(leak.growth["router"].mb_per_minute - 3) < 0.5
    assert "more files" in soak(samples(0.0, noise=1.0, files=90)).faults[0]


def test_what_is_left_behind_is_a_fault() -> None:
    flat = samples(0.0, noise=1.0)
    assert "reserved" in soak(flat, reserved=1).faults[0]
    assert "keys" in soak(flat, redis_keys=100).faults[0]
    assert "failed" in soak(flat, errors=2).faults[0]


def test_a_load_that_the_machine_could_not_keep_up_is_a_fault_of_its_own() -> None:
    (fault,) = soak(samples(3.0, noise=1.0), late=11).faults
    assert fault.startswith("11 requests were not sent")
    assert "grows by" in soak(samples(3.0, noise=1.0), late=10).faults[0]


def ask_once(beside: Callable[[], Awaitable[None]], answer: str) -> Clients:
    """One request of the load, answered with these lines."""

    async def ask() -> Clients:
        served = httpx.MockTransport(lambda _: httpx.Response(200, text=answer))
        async with httpx.AsyncClient(transport=served) as http:
            clients = Clients("http://served", http, 0, beside)
            await clients.ask()
            return clients

    return asyncio.run(ask())


ANSWER = "data: " + json.dumps({"choices": [{"delta": {"content": "a"}}]}) + "\n\n"


def test_a_control_that_fails_is_counted_and_ends_no_load() -> None:
    async def fails() -> None:
        raise RuntimeError("the bare replica died")

    clients = ask_once(fails, ANSWER)
    assert (clients.errors, clients.faults_beside, clients.open) == (0, 1, 0)
    assert len(clients.ttft_s) == 1


def test_a_control_that_hangs_is_counted_and_holds_up_no_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(soak_load, "BESIDE_S", 0.05)
    clients = ask_once(lambda: asyncio.sleep(60), ANSWER)
    assert (clients.errors, clients.faults_beside, clients.open) == (0, 1, 0)


def test_an_answer_cut_within_an_event_is_counted_and_ends_no_load() -> None:
    clients = ask_once(lambda: asyncio.sleep(0), ANSWER[:20])
    assert (clients.errors, clients.faults_beside, clients.open) == (1, 0, 0)


def test_a_control_that_was_asked_less_is_a_fault() -> None:
    flat = samples(0.0, noise=1.0)
    assert soak(flat, beside=10).faults == []
    assert "of the control failed" in soak(flat, beside=11).faults[0]


def test_what_bare_replicas_of_serve_grow_by_is_taken_off_the_engines_growth() -> None:
    def both(engine: float, bare: float) -> list[Sample]:
        wave = [random.Random(n).gauss(0, 0.1) for n in range(120)]
        return [
            (
                5.0 * n,
                {
                    "engine": (300 + wave[n] + engine * n / 12, 40),
                    "bare": (200 + wave[n] + bare * n / 12, 30),
                },
            )
            for n in range(120)
        ]

    same = soak(both(0.3, 0.3))
    assert same.growth["engine"].than == "bare"
    assert same.growth["engine"].mb > 300, "its own size"
    assert abs(same.growth["engine"].mb_per_minute) < 0.01
    assert same.faults == [], "Ray's own growth is shown, and no fault of this application"
    assert "engine grows by 0.30" in soak(both(0.6, 0.3)).faults[0]
    without = [(at, {"engine": found["engine"]}) for at, found in both(0.3, 0.3)]
    assert "engine grows by 0.30" in soak(without).faults[0], "no control, nothing taken off"
