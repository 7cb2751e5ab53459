"""The reporter, against a channel that fails and a clock that the test moves."""

import asyncio
from contextlib import asynccontextmanager, suppress

from cp_ray.core.types import (
    Dump,
    Eviction,
    EvictionReport,
    ReplicaId,
    ReplicaMessage,
    RequestId,
)
from cp_ray.errors import StoreUnavailable
from cp_ray.store import wire
from cp_ray.workers.reporter import HEARTBEAT_S, MAX_BACKOFF_S, Reporter

R = ReplicaId("r1")


class Channel:
    """Fails the first `faults` sends; loses or delivers those, as a lost connection may."""

    def __init__(self) -> None:
        self.faults = 0
        self.delivers_what_it_fails_on = False
        self.reports: list[ReplicaMessage] = []
        self.heartbeat = asyncio.Event()
        self.waits: list[float] = []
        self.frozen = asyncio.Event()
        self.frozen.set()
        self.failed = asyncio.Event()

    async def send(self, payload: bytes) -> None:
        report = wire.decode(payload, ReplicaMessage)
        if self.faults:
            self.faults -= 1
            self.failed.set()
            if self.delivers_what_it_fails_on:
                self.reports.append(report)
            raise StoreUnavailable("down")
        self.reports.append(report)

    async def sleep(self, seconds: float) -> None:
        if seconds == HEARTBEAT_S:
            await self.heartbeat.wait()
            self.heartbeat.clear()
            return
        self.waits.append(seconds)
        await self.frozen.wait()
        await asyncio.sleep(0)


def evictions(*pairs: tuple[str, int]) -> list[Eviction]:
    return [Eviction(RequestId(request), left) for request, left in pairs]


def report(epoch: int, seq: int, *pairs: tuple[str, int]) -> EvictionReport:
    return EvictionReport(R, epoch, seq, tuple(evictions(*pairs)))


@asynccontextmanager
async def running(channel: Channel, **limits: int):
    reporter = Reporter(R, channel.send, sleep=channel.sleep, **limits)
    task = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_evictions_of_a_moment_travel_together_with_the_least_rest_of_each():
    async def run() -> None:
        channel = Channel()
        channel.frozen.clear()
        async with running(channel) as reporter:
            reporter.evicted(evictions(("a", 64), ("b", 32)))
            await settle()
            reporter.evicted(evictions(("a", 32)))
            reporter.evicted(evictions(("a", 48)))
            await settle()
            assert channel.reports == []
            channel.frozen.set()
            await settle()
            assert channel.reports == [report(0, 0, ("a", 32), ("b", 32))]
            assert channel.waits == [0.02]

    asyncio.run(run())


def test_a_full_report_does_not_wait_and_numbers_have_no_gap():
    async def run() -> None:
        channel = Channel()
        channel.frozen.clear()
        async with running(channel, max_evictions=2) as reporter:
            reporter.evicted(evictions(("a", 0), ("b", 0), ("c", 0), ("d", 0), ("e", 0)))
            await settle()
            assert channel.reports == [
                report(0, 0, ("a", 0), ("b", 0)),
                report(0, 1, ("c", 0), ("d", 0)),
            ]
            channel.frozen.set()
            await settle()
            assert channel.reports[2:] == [report(0, 2, ("e", 0))]

    asyncio.run(run())


def test_a_failed_report_is_sent_again_under_its_number_and_backs_off():
    async def run() -> None:
        channel = Channel()
        channel.faults, channel.delivers_what_it_fails_on = 8, True
        async with running(channel) as reporter:
            reporter.evicted(evictions(("a", 0)))
            await settle()
            reporter.evicted(evictions(("b", 0)))
            await settle()
            assert channel.reports == [report(0, 0, ("a", 0))] * 9 + [report(0, 1, ("b", 0))]
            backoffs = [wait for wait in channel.waits if wait > 0.02]
            assert backoffs == sorted(backoffs)
            assert backoffs[-1] == MAX_BACKOFF_S

    asyncio.run(run())


def test_a_new_epoch_is_announced_though_nothing_is_evicted_and_drops_what_waited():
    async def run() -> None:
        channel = Channel()
        async with running(channel) as reporter:
            reporter.evicted(evictions(("a", 0)))
            await settle()
            reporter.evicted(evictions(("b", 0)))
            reporter.new_epoch()
            await settle()
            reporter.evicted(evictions(("c", 0)))
            await settle()
            assert channel.reports == [report(0, 0, ("a", 0)), report(1, 0), report(1, 1, ("c", 0))]

    asyncio.run(run())


def test_a_report_of_an_old_epoch_is_not_tried_again():
    async def run() -> None:
        channel = Channel()
        channel.faults = 3
        async with running(channel) as reporter:
            reporter.evicted(evictions(("a", 0)))
            await channel.failed.wait()
            reporter.new_epoch()
            await settle()
            assert channel.reports == [report(1, 0)]

    asyncio.run(run())


def test_an_overflow_while_nothing_can_be_sent_becomes_a_new_epoch():
    async def run() -> None:
        channel = Channel()
        channel.faults = 10**9
        async with running(channel, max_waiting=3) as reporter:
            reporter.evicted(evictions(("a", 0)))
            await settle()
            reporter.evicted(evictions(("b", 0), ("c", 0), ("d", 0), ("e", 0)))
            channel.faults = 0
            await settle()
            assert channel.reports == [report(1, 0)]

    asyncio.run(run())


def test_an_idle_engine_reports_now_and_then_so_that_a_lost_report_shows():
    async def run() -> None:
        channel = Channel()
        async with running(channel) as reporter:
            reporter.evicted(evictions(("a", 0)))
            await settle()
            for _ in range(2):
                channel.heartbeat.set()
                await settle()
            assert channel.reports == [report(0, 0, ("a", 0)), report(0, 1), report(0, 2)]

    asyncio.run(run())


def test_a_dump_takes_its_number_and_stands_for_what_waited():
    async def run() -> None:
        channel = Channel()
        held = {RequestId("a"): 64}
        async with running(channel) as reporter:
            reporter.evicted(evictions(("a", 96)))
            await settle()
            channel.frozen.clear()
            reporter.evicted(evictions(("a", 64)))
            await settle()
            reporter.dump(lambda: dict(held))
            await settle()
            channel.frozen.set()
            reporter.evicted(evictions(("a", 32)))
            await settle()
            assert channel.reports == [
                report(0, 0, ("a", 96)),
                Dump(R, 0, 1, held),
                report(0, 2, ("a", 32)),
            ]

    asyncio.run(run())


def test_a_dump_asked_for_before_a_new_epoch_carries_the_new_one():
    async def run() -> None:
        channel = Channel()
        channel.frozen.clear()
        async with running(channel) as reporter:
            reporter.dump(dict)
            reporter.new_epoch()
            await settle()
            assert channel.reports == [Dump(R, 1, 0, {})]

    asyncio.run(run())


def test_sixty_seconds_without_redis_lose_nothing_that_fits():
    async def run() -> None:
        channel = Channel()
        channel.faults = 10**9
        async with running(channel) as reporter:
            number = 0
            while sum(channel.waits) < 60:
                reporter.evicted(evictions((f"r{number}", 32)))
                number += 1
                await settle()
            channel.faults = 0
            await settle()
            heard = [report for report in channel.reports if isinstance(report, EvictionReport)]
            assert [(report.epoch, report.seq) for report in heard] == [
                (0, seq) for seq in range(len(heard))
            ]
            lost = [eviction.request_id for report in heard for eviction in report.evicted]
            assert lost == [f"r{name}" for name in range(number)]

    asyncio.run(run())
