"""`bench engine` on the simulated engine: what its rows say adds up."""

import json
import random
from pathlib import Path

import pytest

from cp_ray.cli import main
from cp_ray.replay.engine_bench import EngineBenchOptions, bench_engine


def trace(folder: Path, requests: int) -> Path:
    """Four of twelve documents each, of some 80 tokens."""
    source = random.Random(4)
    documents = [f"document {number} " * 20 for number in range(12)]
    lines = [
        json.dumps({"question": f"question {number}?", "documents": source.sample(documents, 4)})
        for number in range(requests)
    ]
    file = folder / "trace.jsonl"
    file.write_text("\n".join(lines))
    return file


def test_a_trace_is_begun_again_and_its_losses_are_counted(tmp_path: Path) -> None:
    options = EngineBenchOptions(
        engine="simulated",
        trace=trace(tmp_path, 20),
        policies=("none", "online"),
        requests=50,
        concurrency=3,
        cache_tokens=640,
    )
    none, online = bench_engine(options)
    for row in (none, online):
        assert (row.requests, row.audited, row.aborted) == (50, 50, 0)
        assert row.predicted_within_one_block == 1
        assert (row.quarantines, row.new_epochs) == (0, 0)
        assert row.evicted_blocks >= row.evictions > 20
    assert online.hit_ratio > none.hit_ratio


@pytest.mark.parametrize(("at_least", "status"), [("0.99", 0), ("1.01", 1)])
def test_too_few_right_predictions_are_a_failed_command(
    tmp_path: Path, at_least: str, status: int
) -> None:
    command = ["bench", "engine", "--engine", "simulated", "--requests", "20"]
    command += ["--trace", str(trace(tmp_path, 20)), "--at-least", at_least]
    assert main(command) == status
