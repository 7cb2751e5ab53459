"""The soak's verdict: what grows, and what is left behind."""

from __future__ import annotations

import random

from cp_ray.demo.growth import Sample, growth
from cp_ray.demo.soak import Soak


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
    left = {"errors": 0, "redis_keys": 6, "reserved": 0, "late": 0} | more
    return Soak(
        minutes=10,
        requests=1000,
        requests_per_s=2,
        errors=left["errors"],
        late=left["late"],
        ttft_p50_ms=1,
        ttft_p99_ms=2,
        growth=growth(made),
        redis_keys=left["redis_keys"],
        reserved=left["reserved"],
        records=5,
    )


def test_noise_is_no_growth() -> None:
    found = soak(samples(0.0, noise=3.0))
    assert found.faults == []
    assert abs(found.growth["router"].mb_per_minute) < 1


def test_a_leak_of_memory_or_of_files_is_a_fault() -> None:
    leak = soak(samples(3.0, noise=1.0))
    assert "router grows by" in leak.faults[0]
    assert abs(leak.growth["router"].mb_per_minute - 3) < 0.5
    assert "more files" in soak(samples(0.0, noise=1.0, files=30)).faults[0]


def test_what_is_left_behind_is_a_fault() -> None:
    flat = samples(0.0, noise=1.0)
    assert "reserved" in soak(flat, reserved=1).faults[0]
    assert "keys" in soak(flat, redis_keys=100).faults[0]
    assert "failed" in soak(flat, errors=2).faults[0]


def test_a_load_that_the_machine_could_not_keep_up_is_a_fault_of_its_own() -> None:
    (fault,) = soak(samples(3.0, noise=1.0), late=11).faults
    assert fault.startswith("11 requests were not sent")
    assert "grows by" in soak(samples(3.0, noise=1.0), late=10).faults[0]
