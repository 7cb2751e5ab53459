"""The index's journal on a real Redis: flushed, full, half-written, written by a zombie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import redis.asyncio as aioredis

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import (
    BlockId,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
)
from cp_ray.errors import StoreUnavailable
from cp_ray.index_actor import journal as shell
from cp_ray.index_actor.journal import IndexJournal
from cp_ray.store.client import Store
from cp_ray.store.embedded import EmbeddedServer
from cp_ray.store.journal import Journal

R = ReplicaId("r")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EmbeddedServer(tmp_path_factory.mktemp("journal"))
    yield server.start()
    server.stop()


def run(url: str, test: Callable[[Store, aioredis.Redis], Awaitable[None]]) -> None:
    async def main() -> None:
        admin = aioredis.Redis.from_url(url)
        await admin.flushall()
        store = await Store.connect(url, "app")
        try:
            await test(store, admin)
        finally:
            await store.close()
            await admin.aclose()

    asyncio.run(main())


async def told(journal: Journal) -> list[bytes]:
    return [message async for message in journal.load()]


async def messages(*texts: bytes) -> AsyncIterator[bytes]:
    for text in texts:
        yield text


def test_the_next_incarnation_reads_all_of_the_last_one(url: str) -> None:
    async def test(store: Store, admin: aioredis.Redis) -> None:
        first = await store.journal()
        assert await told(first) == []
        await first.append(b"a")
        await first.append(b"b")
        assert await told(await store.journal()) == [b"a", b"b"]

    run(url, test)


def test_a_snapshot_replaces_what_was_before_it(url: str) -> None:
    async def test(store: Store, admin: aioredis.Redis) -> None:
        first = await store.journal()
        await first.append(b"a")
        await first.snapshot(messages(b"A", b"B"))
        await first.append(b"c")
        second = await store.journal()
        assert await told(second) == [b"A", b"B", b"c"]
        await second.append(b"d")
        assert await told(await store.journal()) == [b"A", b"B", b"c", b"d"], "none yet of its own"
        await second.snapshot(messages(b"ABCD"))
        names = {key if isinstance(key, str) else key.decode() for key in await admin.keys("*")}
        assert names - {"cp:app:incarnation", "cp:app:probe"} == {
            "cp:app:journal:2",
            "cp:app:snapshot:2",
            "cp:app:snapshot:2:1",
        }, "nothing of incarnation 1"

    run(url, test)


def test_half_a_snapshot_counts_for_nothing_and_is_dropped(url: str) -> None:
    async def torn() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("killed here")

    async def test(store: Store, admin: aioredis.Redis) -> None:
        first = await store.journal()
        await first.append(b"a")
        with pytest.raises(RuntimeError):
            await first.snapshot(torn())
        assert await told(await store.journal()) == [b"a"]
        assert await admin.ttl("cp:app:snapshot:1:1") > 0, "it expires if nobody comes back"
        await first.snapshot(messages(b"A"))
        assert not await admin.exists("cp:app:snapshot:1:1")

    run(url, test)


def test_a_zombie_spoils_nothing(url: str) -> None:
    async def test(store: Store, admin: aioredis.Redis) -> None:
        zombie = await store.journal()
        await zombie.append(b"a")
        heir = await store.journal()
        await told(heir)
        await heir.snapshot(messages(b"A"))
        await zombie.append(b"late")
        await zombie.snapshot(messages(b"late too"))
        assert await told(await store.journal()) == [b"A"]
        assert 0 < await admin.ttl("cp:app:journal:1") <= 3600 or not await admin.exists(
            "cp:app:journal:1"
        )

    run(url, test)


def test_a_flushed_redis_is_noticed_and_numbers_never_go_back(url: str) -> None:
    async def test(store: Store, admin: aioredis.Redis) -> None:
        await store.journal()
        second = await store.journal()
        await second.snapshot(messages(b"A"))
        assert await second.keep()
        await admin.flushall()
        assert not await second.keep()
        await second.snapshot(messages(b"B"))
        third = await store.journal()
        assert third.number == 3
        assert await told(third) == [b"B"]

    run(url, test)


def test_a_full_redis_is_an_error_of_ours_and_then_a_whole_snapshot(url: str) -> None:
    async def test(store: Store, admin: aioredis.Redis) -> None:
        first = await store.journal()
        await admin.config_set("maxmemory", "1")
        try:
            with pytest.raises(StoreUnavailable):
                await first.append(b"a")
            with pytest.raises(StoreUnavailable):
                await first.snapshot(messages(b"A"))
        finally:
            await admin.config_set("maxmemory", "0")
        await first.snapshot(messages(b"A"))
        assert await told(await store.journal()) == [b"A"]

    run(url, test)


def index_of(count: int) -> ContextIndex:
    index = ContextIndex()
    index.set_replicas([ReplicaInfo(R, 1, 100_000)])
    requests = [
        PlanRequest(RequestId(f"q{n}"), HeadId("h"), 5, (BlockId(f"b{n}"),), (10,), 3)
        for n in range(count)
    ]
    index.plan(requests, 0.0)
    for request in requests:
        index.hear(Settled(request.request_id, 0, ok=True), 0.0)
    return index


async def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - other tasks of this loop make it true
            await asyncio.sleep(0.01)


async def at_once() -> None:
    return


def test_an_index_is_recovered_and_goes_on_through_a_full_redis(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "FLUSH_S", 0.01)
    monkeypatch.setattr(shell, "SLICE", 7)

    async def connect() -> Store:
        return await Store.connect(url, "app")

    async def test(store: Store, admin: aioredis.Redis) -> None:
        index = index_of(50)
        keeper = IndexJournal(index, connect, at_once, at_once)
        task = asyncio.create_task(keeper.run())
        for request in list(index.memory.records):
            keeper.ended(request)
        await until(lambda: keeper.counters()["snapshots"] > 0)
        await admin.config_set("maxmemory", "1")
        keeper.ended(RequestId("q7"))
        await until(lambda: keeper.counters()["journal_faults"] > 0)
        await admin.config_set("maxmemory", "0")
        snapshots = keeper.counters()["snapshots"]
        await until(lambda: keeper.counters()["snapshots"] > snapshots)
        task.cancel()

        new = index_of(0)
        heir = IndexJournal(new, connect, at_once, at_once)
        task = asyncio.create_task(heir.run())
        await until(lambda: heir.counters()["recalled"] == 50)
        await until(lambda: not heir.recovering)
        assert set(new.memory.records) == set(index.memory.records)
        assert not new.replicas.believed(R)
        task.cancel()

    run(url, test)


def test_keys_are_kept_and_lost_ones_noticed_while_traffic_never_pauses(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they expire under the busiest applications, and a crash then forgets everything."""
    monkeypatch.setattr(shell, "FLUSH_S", 0.01)
    monkeypatch.setattr(shell, "KEEP_S", 0.2)

    async def connect() -> Store:
        return await Store.connect(url, "app")

    async def test(store: Store, admin: aioredis.Redis) -> None:
        keeper = IndexJournal(index_of(50), connect, at_once, at_once)

        async def traffic() -> None:
            while True:
                keeper.ended(RequestId("q7"))
                await asyncio.sleep(0.05)

        tasks = [asyncio.create_task(keeper.run()), asyncio.create_task(traffic())]
        await until(lambda: keeper.counters()["snapshots"] > 0)
        kept = ("cp:app:incarnation", "cp:app:snapshot:1")
        for key in kept:
            assert await admin.expire(key, 60)
        await asyncio.sleep(0.5)
        assert min([await admin.ttl(key) for key in kept]) > 60
        snapshots = keeper.counters()["snapshots"]
        await admin.flushall()
        await until(lambda: keeper.counters()["snapshots"] > snapshots)
        assert (await store.journal()).number == 2
        for task in tasks:
            task.cancel()

    run(url, test)


def test_a_message_of_another_version_is_left_out(url: str) -> None:
    async def connect() -> Store:
        return await Store.connect(url, "app")

    async def test(store: Store, admin: aioredis.Redis) -> None:
        old = await store.journal()
        await old.append(b"\x7fnot for us")
        await old.append(b"")
        heir = IndexJournal(index_of(0), connect, at_once, at_once)
        task = asyncio.create_task(heir.run())
        await until(lambda: heir.counters()["snapshots"] == 1)
        assert heir.counters()["journal_unreadable"] == 2
        task.cancel()

    run(url, test)
