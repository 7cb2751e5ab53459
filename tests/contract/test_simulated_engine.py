"""The simulated engine keeps the same contract, with a fast clock."""

import asyncio

import pytest

from cp_ray.config import AppConfig
from cp_ray.workers.simulated_engine import SimulatedEngine
from tests.contract import suite


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def subject(loop):
    config = AppConfig(
        engine="simulated",
        model="tiny",
        cache_tokens=1024,
        page_size=16,
        prefill_tokens_per_s=1e6,
        decode_tokens_per_s=1e3,
    )
    started = loop.run(suite.start(lambda: SimulatedEngine(config)))
    yield started
    loop.run(suite.check_close_is_idempotent(started))


@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_contract(loop, subject, check):
    loop.run(check(subject))
