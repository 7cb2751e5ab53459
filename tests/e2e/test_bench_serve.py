"""`cp-ray bench serve --engine simulated` once, quickly: every part of the report is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


def test_a_short_run_measures_both_applications_and_opens_its_streams() -> None:
    """Not within its limits, for which a run this short says nothing."""
    command = "bench serve --engine simulated --sizes 2 --pairs 2 --block 2 --streams 40 --json"
    ran = subprocess.run(
        [sys.executable, "-m", "cp_ray.cli", *command.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert ran.returncode in (0, 1), ran.stderr[-2000:]
    found = json.loads(ran.stdout)  # and nothing else, whatever Ray has to say
    for cell in found["cells"]:
        assert cell["failed"] == 0
        assert cell["requests"] > 10
        stages = cell["stages_median_ms"]
        assert 0 < stages["prepared"] < stages["planned"] < stages["issued"]
        assert cell["inside_median_ms"] <= cell["inside_p99_ms"]
        for side, kinds in (("cp_ray", ("cp Router", "cp Engine", "index")), ("bare", ())):
            spent = cell[side]["cpu_ms"]
            assert all(spent[kind] > 0 for kind in ("proxy", *kinds)), (side, spent)
        assert cell["bare"]["cpu_ms"]["bare Engine"] > 0
    assert [cell["texts"] for cell in found["cells"]] == ["new", "known"]
    streams = found["streams"]
    assert (streams["open_at_once"], streams["whole"], streams["restarted"]) == (40, 40, [])
