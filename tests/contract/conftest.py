"""One real engine for all contract tests of the session, and the table of faults."""

import asyncio

import pytest

from tests.contract import real_engine, suite
from tests.contract.faults import HEAD, TABLE


@pytest.fixture(scope="session")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def subject(loop):
    """The engine of this environment; only files with `real_engine.only` ask for it."""
    started = loop.run(real_engine.start())
    yield started
    loop.run(suite.check_close_is_idempotent(started))


def pytest_terminal_summary(terminalreporter):
    """The rows that docs/engines.md shows."""
    if TABLE:
        terminalreporter.section(f"faults on the real engine, {real_engine.version()}")
        for row in (*HEAD, *TABLE):
            terminalreporter.write_line(str(row))
