"""One real vLLM on CPU for all contract tests of the session, and the table of faults."""

import asyncio

import pytest

from cp_ray.config import AppConfig
from tests.contract import suite
from tests.contract.faults import HEAD, TABLE


@pytest.fixture(scope="session")
def vllm_loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def vllm_subject(vllm_loop):
    """64 cache blocks of 32 tokens, 8 requests at once."""
    pytest.importorskip("vllm")
    from cp_ray.workers.vllm_engine import VllmEngine

    config = AppConfig(model="tiny", cache_tokens=2048, max_ongoing_requests=8)
    started = vllm_loop.run(suite.start(lambda: VllmEngine(config)))
    yield started
    vllm_loop.run(suite.check_close_is_idempotent(started))


def pytest_terminal_summary(terminalreporter):
    """The rows that docs/engines.md shows."""
    if TABLE:
        terminalreporter.section("faults on the real engine")
        for row in (*HEAD, *TABLE):
            terminalreporter.write_line(str(row))
