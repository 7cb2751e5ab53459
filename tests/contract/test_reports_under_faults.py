"""An engine's own cache manager and a faulty way to the index: loss, repeats, disorder, overflow.

Found within 50 requests, no ghost once the index believes the replica again.
"""

import random
from collections.abc import Callable

import pytest

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import (
    BlockId,
    Dump,
    Eviction,
    EvictionReport,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    ReplicaMessage,
    RequestId,
    Settled,
)
from cp_ray.workers.cache_events import Removed
from tests.contract import real_engine
from tests.contract.events_under_faults import PAGE, PAGES, Drive
from tests.contract.lossy import Loser

real_engine.only("vllm", "sglang")
pytestmark = [pytest.mark.vllm, pytest.mark.sglang, pytest.mark.timeout(300)]
R = ReplicaId("r")
Way = Callable[["Reported", ReplicaMessage], None]
"""Takes a message on its way to the index; delivers what it does not lose."""


class Reported(Drive):
    """A drive whose losses are reported to an index, by a way that spoils the reports."""

    def __init__(self, seed, way: Way, spoil=lambda event: [event]) -> None:
        super().__init__(seed, 4, spoil)
        self.index = ContextIndex()
        self.index.set_replicas([ReplicaInfo(R, PAGE, PAGE * PAGES)])
        self.way = way
        self.epoch = self.seq = 0
        self.faults = random.Random(seed)
        self.late: list[ReplicaMessage] = []
        self.unbelieved: list[int] = []

    def tell(self, message: ReplicaMessage, way: Way | None = None) -> None:
        self.seq += 1
        (way or self.way)(self, message)

    def lost(self, evictions: list[Eviction]) -> None:
        if evictions:
            self.tell(EvictionReport(R, self.epoch, self.seq, tuple(evictions)))

    def began_anew(self) -> None:
        self.epoch, self.seq = self.epoch + 1, 0
        self.tell(EvictionReport(R, self.epoch, 0, ()))

    def submitted(self, name, context, prompt) -> None:
        lengths = tuple(len(self.documents[number]) for number in context)
        blocks = tuple(BlockId(str(number)) for number in context)
        tail = len(prompt) - sum(lengths)
        plan = PlanRequest(RequestId(name), HeadId("h"), 0, blocks, lengths, tail, movable=False)
        [step] = self.index.plan([plan], float(self.tally.requests))
        assert step.replica == R, "every request is served, whatever is lost"

    def ended(self, name, cached, held) -> None:
        now = float(self.tally.requests)
        self.index.hear(FirstToken(RequestId(name)), now)
        self.index.hear(Settled(RequestId(name), cached, True, held), now)
        for asked in self.index.dump_requests(now):
            if asked.rebuild:
                self.drop_cache()
            else:
                held_now = self.residency.held()
                self.tell(Dump(R, self.epoch, self.seq, held_now), direct)
        if self.tally.requests % 10 == 0:
            self.index.check()

    def ghosts(self) -> set[RequestId]:
        """Requests the index believes more of than the residency holds, waiting ones left out."""
        held = self.residency.held()
        return {
            request
            for request, record in self.index._records.items()
            if request not in self.running
            and record.tokens_left >= PAGE
            and record.tokens_left // PAGE * PAGE > held.get(request, 0)
        }


def direct(drive: Reported, message: ReplicaMessage) -> None:
    drive.index.apply(message)


def loses(drive: Reported, message: ReplicaMessage) -> None:
    if drive.faults.random() > 0.02:
        drive.index.apply(message)


def repeats(drive: Reported, message: ReplicaMessage) -> None:
    for _ in range(drive.faults.choice((1, 1, 2, 3))):
        drive.index.apply(message)
    if drive.faults.random() < 0.1:
        drive.late.append(message)
    if drive.late and drive.faults.random() < 0.1:
        drive.index.apply(drive.late.pop(drive.faults.randrange(len(drive.late))))


def swaps(drive: Reported, message: ReplicaMessage) -> None:
    """Now and then the next one overtakes."""
    if drive.late:
        drive.index.apply(message)
        drive.index.apply(drive.late.pop())
    elif drive.faults.random() < 0.05:
        drive.late.append(message)
    else:
        drive.index.apply(message)


@pytest.mark.parametrize("way", [direct, loses, repeats, swaps], ids=lambda way: way.__name__)
def test_the_index_never_keeps_a_ghost_once_it_believes_the_replica(way):
    drive = Reported(3, way)
    ghosts_for = longest = 0
    for _ in range(1200):
        drive.one()
        ghosts_for = ghosts_for + 1 if drive.ghosts() else 0
        longest = max(longest, ghosts_for)
    assert longest <= 50, "requests until a fault was found and mended"
    counters = drive.index.counters()
    if way in (direct, repeats):
        assert (longest, counters.get("reports_gap", 0)) == (0, 0)
    else:
        assert counters["reports_gap"] > 5
        assert counters["reports_dump"] > 5
    assert counters.get("audit_mismatches", 0) == 0
    assert counters["planned"] == 1200


def test_an_overflow_is_a_new_epoch_and_leaves_no_ghost():
    drive = Reported(4, direct)
    for number in range(600):
        drive.one()
        if number % 100 == 99:  # what the reporter does when its buffer is full
            drive.began_anew()
            assert drive.index.counters()["records"] == 0
        assert not drive.ghosts()


def test_a_view_that_lost_events_without_a_trace_is_dropped_and_no_ghost_survives():
    drive = Reported(5, direct, Loser(0.01, (Removed,), 5))
    for _ in range(1500):
        drive.one()
    assert drive.tally.doubts > 3
    drive.spoil = lambda event: [event]
    doubts, wrong = drive.tally.doubts, drive.index.counters().get("audit_mismatches", 0)
    for _ in range(300):
        drive.one()
    drive.drop_cache()
    for _ in range(300):
        drive.one()
    assert drive.tally.doubts <= doubts + 1
    assert drive.index.counters().get("audit_mismatches", 0) <= wrong + 3
    assert not drive.ghosts()
