"""Faults between a real engine and an index: found soon, no ghost after, and no request fails.

Each test leaves a row for the table of docs/engines.md.
"""

import asyncio
import multiprocessing
import random
import statistics

import pytest

from cp_ray.core.types import ReplicaMessage
from cp_ray.store import wire
from cp_ray.workers import kv_events, reporter
from cp_ray.workers.cache_events import Removed, Stored
from tests.contract import real_engine, suite
from tests.contract.faults import Serving, serving
from tests.contract.lossy import Loser, loses, replays

real_engine.only("vllm", "sglang")
pytestmark = [pytest.mark.vllm, pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.fixture
def faulty(loop, subject, tmp_path, monkeypatch):
    """Run a test on a served engine; reports go out at once."""
    monkeypatch.setattr(reporter, "MAX_AGE_S", 0.002)

    def run(test, **limits):
        async def main() -> None:
            async with serving(subject, tmp_path / "redis", **limits) as it:
                await test(it)

        loop.run(main())

    return run


def test_one_batch_in_a_hundred_lost_is_replayed(faulty, subject):
    events = subject.engine._events
    source = random.Random(3)

    async def test(it: Serving) -> None:
        lost: list[tuple[int, int]] = []
        waits: list[int] = []
        on = True

        def chance(number: int) -> bool:
            if on and source.random() < 0.01:
                lost.append((number, it.requests))
                return True
            return False

        epochs = it.counters.get("reports_new_epoch", 0)
        with loses(events, chance):
            while len(waits) < 4:
                await it.ask()
                while len(waits) < len(lost) and events._next > lost[len(waits)][0]:
                    waits.append(it.requests - lost[len(waits)][1])
                assert it.requests < 900
            on = False
            await it.ask()
        assert it.counters.get("reports_new_epoch", 0) == epochs, "nothing was forgotten"
        await it.record("1% of batches lost, replayed", max(waits), it.requests)

    faulty(test)


def test_a_replay_that_comes_late_forgets_the_cache(faulty, subject, tmp_path, monkeypatch):
    monkeypatch.setattr(kv_events, "_REPLAY_TIMEOUT_S", 0.3)
    events = subject.engine._events

    async def test(it: Serving) -> None:
        lost: list[int] = []

        def once(number: int) -> bool:
            if not lost:
                lost.append(number)
                return True
            return False

        async with replays(events, after_s=0.8, folder=str(tmp_path)):
            with loses(events, once):
                await it.until(lambda: bool(lost))
                began = it.requests
                detected = await it.until_counted("reports_new_epoch")
            await asyncio.sleep(0.8)  # the answer that nobody waits for any more
        await it.record("batch lost, replay late", detected, began)

    faulty(test)


@pytest.mark.parametrize(
    "kind", [(Stored, Removed), (Stored,), (Removed,)], ids=["any", "stored", "removed"]
)
def test_one_event_in_a_hundred_lost_without_a_trace(faulty, subject, kind):
    """Beyond the faults of a stream with numbers: only contradictions and audits tell.

    Counted from the request whose step lost the event: 0 = known before the next one was sent.
    """
    view = subject.engine._view
    loser = Loser(0.01, kind, 1)

    async def test(it: Serving) -> None:
        on_batch = view.on_batch

        def spoilt(events, made_at):
            on_batch([kept for event in events for kept in loser(event)], made_at)

        waits: list[int] = []
        wrong = it.counters.get("audit_mismatches", 0)
        view.on_batch = spoilt
        try:
            while len(waits) < 3:
                known = it.counters.get("reports_new_epoch", 0)
                await it.ask()
                if loser.took():
                    began = it.requests
                    waits.append(await it.until_more("reports_new_epoch", known, 900))
                    await it.heard()
        finally:
            del view.on_batch
        detected = int(statistics.median(waits))
        assert detected <= 50
        wrong = it.counters.get("audit_mismatches", 0) - wrong
        assert wrong <= 3 * len(waits), "three wrong predictions are too many for one loss"
        names = " and ".join(one.__name__ for one in kind)
        fault = f"1% of {names} events lost unseen ({wrong} predicted wrong)"
        await it.record(fault, detected, began + waits[-1])

    faulty(test)


def test_reports_that_come_twice_or_in_disorder(faulty):
    source = random.Random(2)

    async def test(it: Serving) -> None:
        held_back: list[bytes] = []

        async def disorder(payload: bytes) -> None:
            for _ in range(source.choice((1, 1, 2, 3))):
                await it.append(payload)
            if held_back:
                await it.append(held_back.pop())

        async def overtaken(payload: bytes) -> None:
            if held_back:
                await disorder(payload)
            elif wire.decode(payload, ReplicaMessage).epoch and source.random() < 0.2:
                held_back.append(payload)
            else:
                await disorder(payload)

        it.way = overtaken
        gaps, waits = it.counters.get("reports_gap", 0), []
        for _ in range(3):
            await it.until(lambda: bool(held_back))
            began = it.requests
            waits.append(await it.until_counted("reports_gap"))
        it.way = it.append
        if held_back:
            await it.append(held_back.pop())
        await it.ask()
        assert it.counters["reports_gap"] >= gaps + 3
        assert it.counters["reports_stale"] > 3
        assert it.counters["reports_dump"] >= 1
        await it.record("reports twice and in disorder", max(waits), began + waits[-1])

    faulty(test)


def test_a_reset_of_an_idle_engine_is_known_before_the_next_request(faulty, subject):
    async def test(it: Serving) -> None:
        await subject.engine.reset_cache()
        began = it.requests
        await it.heard()
        assert it.counters["records"] == 0
        predicted, last = await it.ask()
        assert predicted == last.cached_tokens == 0
        await it.record("cache reset while idle", 0, began)

    faulty(test)


def test_an_overflow_of_the_reporter_is_a_new_epoch(faulty):
    async def test(it: Serving) -> None:
        epoch = it._reporter._epoch
        it.server.stop()
        began = it.requests
        detected = await it.until(lambda: it._reporter._epoch > epoch)
        it.server.start()
        await it.until(lambda: it.reader.connected, 500)
        await it.record("report buffer overflows", detected, began + detected)

    faulty(test, max_waiting=6)


@pytest.mark.parametrize("away_s", [3, pytest.param(60, marks=pytest.mark.chaos)])
def test_redis_away_costs_no_request_and_nothing_is_lost(faulty, away_s):
    async def test(it: Serving) -> None:
        loop = asyncio.get_running_loop()
        epochs, gaps = it.counters["reports_new_epoch"], it.counters.get("reports_gap", 0)
        until = loop.time() + away_s
        it.server.stop()
        detected = await it.until(lambda: not it.reader.connected)
        while loop.time() < until:
            await it.ask()
        assert it._reporter._waiting, "evictions wait"
        it.server.start()
        began = it.requests
        await it.until(lambda: it.reader.connected, 500)
        await it.heard()
        assert it.counters["reports_new_epoch"] == epochs
        assert it.counters.get("reports_gap", 0) == gaps
        await it.record(f"Redis away for {away_s} s", detected, began)

    faulty(test)


@pytest.mark.chaos
@pytest.mark.timeout(600)  # an engine is loaded twice; on a busy machine that takes minutes each
def test_an_engine_restarted_inside_a_living_replica(faulty, subject):
    """Its numbers begin at 0 again, on the same sockets."""
    engine = subject.engine

    async def test(it: Serving) -> None:
        assert engine._events._next > 20
        known = it.counters.get("reports_new_epoch", 0)
        await asyncio.to_thread(stop, engine._llm)
        await asyncio.to_thread(engine._load)
        # Loading starves this process, and with it reporter and index: that is not the fault here.
        read = it.reader.counters()["reports_read"]
        await suite.until(lambda: it.reader.counters()["reports_read"] > read, "reports again")
        began = it.requests
        # SGLang's first batch comes with its start.
        detected = await it.until_more("reports_new_epoch", known, 50)
        assert engine._events._next < 20
        await it.record("engine restarted in a living replica", detected, began)

    faulty(test)


def stop(llm):
    """End the engine's processes; SGLang itself would end every child of ours, and Redis is one."""
    if real_engine.NAME == "vllm":
        llm.shutdown()
        return
    llm.tokenizer_manager._subprocess_watchdog.stop()
    pids = set(llm.get_all_child_pids())
    for process in multiprocessing.active_children():
        if process.pid in pids:
            process.kill()
            process.join()
