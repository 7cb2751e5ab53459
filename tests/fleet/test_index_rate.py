"""The benchmark of the index under a fleet's load does what its figures say."""

from __future__ import annotations

from benchmarks.index_rate import InProcess


def test_every_plan_is_paid_for_by_an_eviction_and_the_index_stays_as_full() -> None:
    bench = InProcess(records=1500, replicas=4)
    bench.fill()
    bench.rate(1024, 32)
    found = bench.rate(512, 32)
    bench.index.check()
    counted = bench.index.counters()
    assert found["entries_per_planned"] == 1.0
    assert 1500 <= len(bench.index.records) < 1500 + 128
    assert counted.get("unknown_evictions", 0) == counted.get("passed_through", 0) == 0
    assert found["planned_per_s"] > 0
