"""The quick faults of the suite, one after the other, under load; `make chaos` does them all."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.fleet import KEY, fleet, logs_that_tell
from tests.chaos.load import Load
from tests.chaos.suffering import Outcome, suffer


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_no_fault_loses_a_request_and_the_index_agrees_with_the_engines_again(
    serve_url: str, tmp_path: Path
) -> None:
    async def main() -> list[Outcome]:
        async with Load(running.base, key=KEY) as load:
            await asyncio.sleep(3)
            quick = [fault for fault in FAULTS if fault.quick]
            return [await suffer(running, load, fault, rng, 40) for fault in quick]

    rng = random.Random(0)
    with fleet(serve_url, tmp_path / "redis") as running:
        outcomes = asyncio.run(main())
        password = running.server.url.partition("@")[0].rpartition(":")[2]
        assert logs_that_tell([KEY, password]) == []
    for outcome in outcomes:
        assert not outcome.wrong, outcome
        assert not outcome.lost, outcome
        assert outcome.converged_s is not None, outcome
        assert outcome.sendings > 20, outcome
