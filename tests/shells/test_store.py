"""Store against the real server: reports, records, and what it does when the server fails."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
import redis

from cp_ray.core.types import Eviction, EvictionReport, ReplicaId, RequestId
from cp_ray.errors import StoreUnavailable
from cp_ray.store.client import START, Store
from cp_ray.store.embedded import EmbeddedServer
from cp_ray.store.wire import decode, encode
from tests.shells.store_support import run


def test_reports_come_back_in_order_and_resume_by_id(server: EmbeddedServer) -> None:
    async def use(store: Store) -> None:
        assert await store.reports_tail() == START
        assert await store.read_reports(START, 0) == []
        ids = [await store.append_report(b"%d" % number) for number in range(5)]
        first = await store.read_reports(START, 0, count=2)
        assert first == [(ids[0], b"0"), (ids[1], b"1")]
        rest = await store.read_reports(first[-1][0], 0)
        assert [payload for _, payload in rest] == [b"2", b"3", b"4"]
        assert await store.reports_tail() == ids[-1]
        assert await store.read_reports(ids[-1], 0) == []

    run(server.url, use)


def test_a_report_crosses_the_stream_whole(server: EmbeddedServer) -> None:
    report = EvictionReport(ReplicaId("r"), 1, 0, (Eviction(RequestId("q"), 16),))

    async def use(store: Store) -> None:
        await store.append_report(encode(report))
        [(_, payload)] = await store.read_reports(START, 0)
        assert decode(payload, EvictionReport) == report

    run(server.url, use)


def test_a_blocked_read_waits_for_the_next_report_and_records_do_not_wait_behind_it(
    server: EmbeddedServer,
) -> None:
    async def use(store: Store) -> None:
        reading = asyncio.create_task(store.read_reports(await store.reports_tail(), 3000))
        await asyncio.sleep(1.3)  # longer than any reply may take
        assert not reading.done()
        started = time.monotonic()
        await store.put_record("k", b"v", 60)
        await store.append_report(b"now")
        assert [payload for _, payload in await reading] == [b"now"]
        assert time.monotonic() - started < 1

    run(server.url, use)


def test_a_blocked_read_ends_empty_when_nothing_comes(server: EmbeddedServer) -> None:
    async def use(store: Store) -> None:
        started = time.monotonic()
        assert await store.read_reports(START, 200) == []
        assert 0.15 < time.monotonic() - started < 1.5

    run(server.url, use)


def test_a_blocked_read_can_be_cancelled_and_read_again(server: EmbeddedServer) -> None:
    async def use(store: Store) -> None:
        for _ in range(5):
            reading = asyncio.create_task(store.read_reports(START, 60_000))
            await asyncio.sleep(0.05)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        await store.append_report(b"after")
        assert [payload for _, payload in await store.read_reports(START, 100)] == [b"after"]

    run(server.url, use)


def test_a_stream_that_lies_before_the_reader_is_read_from_its_beginning(
    server: EmbeddedServer,
) -> None:
    async def use(store: Store) -> None:
        await store.append_report(b"younger server, older clock")
        [(_, payload)] = await store.read_reports("99999999999999-7", 50)
        assert payload == b"younger server, older clock"

    run(server.url, use)


def test_the_stream_is_trimmed(server: EmbeddedServer) -> None:
    async def use(store: Store) -> None:
        short = await Store.connect(server.url, max_reports=100)
        for number in range(500):
            await short.append_report(b"%d" % number)
        await short.close()
        kept = await store.read_reports(START, 0, count=1000)
        assert 100 <= len(kept) < 500
        assert kept[-1][1] == b"499"

    run(server.url, use)


def test_a_record_expires(server: EmbeddedServer) -> None:
    async def use(store: Store) -> None:
        assert await store.get_record("c") is None
        await store.put_record("c", b"\x00\xff", 1)
        assert await store.get_record("c") == b"\x00\xff"
        await asyncio.sleep(1.2)
        assert await store.get_record("c") is None

    run(server.url, use)


def test_writing_a_record_again_gives_it_its_whole_time(server: EmbeddedServer) -> None:
    async def use(store: Store) -> None:
        await store.put_record("c", b"1", 1)
        await store.put_record("c", b"2", 100)
        await asyncio.sleep(1.2)
        assert await store.get_record("c") == b"2"

    run(server.url, use)


def test_two_applications_do_not_see_each_other(server: EmbeddedServer) -> None:
    async def one(store: Store) -> None:
        await store.put_record("c", b"1", 60)
        await store.append_report(b"1")

    async def two(store: Store) -> None:
        assert await store.get_record("c") is None
        assert await store.reports_tail() == START

    run(server.url, one, "one")
    run(server.url, two, "two")
    with redis.Redis.from_url(server.url) as client:
        keys = {key.decode() for key in client.keys("*")}
    assert keys <= {
        "cp:one:record:c",
        "cp:one:reports",
        "cp:one:probe",
        "cp:two:probe",
    }


def test_a_killed_server_costs_little_and_the_client_reconnects(server: EmbeddedServer) -> None:
    async def use(store: Store) -> None:
        await store.put_record("c", b"1", 60)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.sleep(0.1)
        for call in (
            store.get_record("c"),
            store.put_record("c", b"2", 60),
            store.append_report(b"r"),
            store.read_reports(START, 10),
            store.reports_tail(),
        ):
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
                await call
            assert time.monotonic() - started < 1.3
        server.start()
        assert await store.get_record("c") is None  # nothing is persisted
        await store.put_record("c", b"3", 60)
        assert await store.get_record("c") == b"3"
        await store.append_report(b"r")
        assert [payload for _, payload in await store.read_reports(START, 0)] == [b"r"]

    run(server.url, use)


def test_a_server_killed_under_a_blocked_read_wakes_it(server: EmbeddedServer) -> None:
    async def use(store: Store) -> None:
        reading = asyncio.create_task(store.read_reports(START, 30_000))
        await asyncio.sleep(0.1)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(reading, 3)

    run(server.url, use)


def test_a_frozen_server_costs_a_request_about_a_second_at_most(server: EmbeddedServer) -> None:
    async def use(store: Store) -> None:
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            results = await asyncio.gather(
                *(store.get_record("c") for _ in range(80)),
                store.append_report(b"r"),
                store.read_reports(START, 0),
                return_exceptions=True,
            )
            assert time.monotonic() - started < 2.5  # 1 s, and a busy machine
        finally:
            os.kill(pid, signal.SIGCONT)
        assert {type(result) for result in results} == {StoreUnavailable}
        assert await store.get_record("c") is None

    run(server.url, use)


def test_a_full_server_is_unavailable_and_says_why(server: EmbeddedServer) -> None:
    async def use(store: Store) -> None:
        with redis.Redis.from_url(server.url) as admin:
            admin.config_set("maxmemory", "1kb")
            try:
                with pytest.raises(StoreUnavailable, match="maxmemory"):
                    await store.put_record("c", b"x", 60)
            finally:
                admin.config_set("maxmemory", "512mb")

    run(server.url, use)


def test_a_server_that_is_stopped_does_not_keep_us_from_leaving(server: EmbeddedServer) -> None:
    """Nor does one whose connections cannot be closed in time: closing never raises."""

    async def use(store: Store) -> None:
        other = await Store.connect(server.url, "t")
        await other.append_report(b"x")

        async def too_late(*_: object, **__: object) -> None:
            raise redis.exceptions.TimeoutError("Timed out closing connection after 0.4")

        for client in (other._client, other._reader):
            real = client.connection_pool.disconnect
            client.connection_pool.disconnect = too_late  # type: ignore[method-assign]
            await other.close()
            client.connection_pool.disconnect = real  # type: ignore[method-assign]
        await other.close()

    run(server.url, use)
