"""An engine's own cache manager and events: no doubt without cause, and faults are found."""

import pytest

from cp_ray.workers.cache_events import Removed, Stored
from tests.contract import real_engine
from tests.contract.events_under_faults import Drive, Lossy

real_engine.only("vllm", "sglang")
pytestmark = [pytest.mark.vllm, pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.mark.parametrize("in_flight", [1, 8])
def test_without_a_fault_nothing_is_doubted_and_every_prediction_is_right(in_flight):
    tally = Drive(1, in_flight, lambda event: [event]).run(1500)
    assert (tally.doubts, tally.mismatches) == (0, 0)
    assert tally.audited > 0.9 * tally.requests
    assert tally.evictions > 1000, "the workload must overflow the cache"
    assert tally.cached_tokens > 5000, "and it must hit"


@pytest.mark.parametrize("kinds", [(Stored,), (Removed,), (Stored, Removed)])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_one_event_in_a_hundred_lost_without_a_trace_is_found_within_50_requests(in_flight, kinds):
    """Each by a contradiction, and before any answer is predicted wrong."""
    drive = Lossy(1, in_flight, kinds, 0.01)
    drive.run(1500)
    waits = sorted(drive.waits)
    assert len(waits) + len(drive.lost_at) == drive.loser.lost
    assert len(waits) > 5
    assert all(drive.tally.requests - lost <= 50 for lost in drive.lost_at)
    assert waits[-1] <= 50
    assert drive.tally.mismatches == 0
