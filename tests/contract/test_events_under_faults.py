"""An engine's own cache manager and events: no doubt without cause, and faults are found."""

import itertools

import pytest

from cp_ray.workers.cache_events import Removed, Stored
from tests.contract import real_engine
from tests.contract.events_under_faults import Drive
from tests.contract.lossy import Loser

real_engine.only("vllm", "sglang")
pytestmark = [pytest.mark.vllm, pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.mark.parametrize("in_flight", [1, 8])
def test_without_a_fault_nothing_is_doubted_and_every_prediction_is_right(in_flight):
    tally = Drive(1, in_flight, lambda event: [event]).run(1500)
    assert (tally.doubts, tally.mismatches) == (0, 0)
    assert tally.audited > 0.9 * tally.requests
    assert tally.evictions > 1000, "the workload must overflow the cache"
    assert tally.cached_tokens > 5000, "and it must hit"


@pytest.mark.parametrize("kind", [Stored, Removed])
@pytest.mark.parametrize("seed", range(3))
def test_one_event_in_a_hundred_lost_without_a_trace_is_found(kind, seed):
    """Within 50 requests, by contradiction, or by an audit that does not match.

    A page that SGLang removed unheard may stay longer: until the page above it is removed, or a
    request brings it again, which is before any answer is predicted wrong.
    """
    loser = Loser(0.01, kind, seed)
    drive = Drive(seed, 8, loser)
    waits = []
    for _ in range(20):
        lost = loser.lost
        while loser.lost == lost:
            drive.one()
        found = (drive.tally.doubts, drive.tally.mismatches)
        for waited in itertools.count():
            if (drive.tally.doubts, drive.tally.mismatches) != found:
                break
            drive.one()
            assert waited < 500, "never found"
        waits.append(waited)
    waits.sort()
    if (real_engine.NAME, kind) == ("sglang", Removed):
        assert drive.tally.mismatches == 0
    else:
        assert waits[len(waits) // 2] <= 50
