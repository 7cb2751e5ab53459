"""An engine that hangs while its replica lives is found, and what it has is told so at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from cp_ray.errors import EngineError, EngineGone
from cp_ray.workers.engine import Chunk
from cp_ray.workers.engine_watch import EngineWatch

ASK_S, ANSWER_S = 0.05, 0.3


class Hangable:
    """An engine that gives chunks and signs of life while `runs` is set."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.runs = asyncio.Event()
        self.runs.set()
        self.pause_s = pause_s
        self.pings = self.killed = 0
        self.dead = False
        self.closed = 0

    async def ping(self) -> None:
        self.pings += 1
        await self.runs.wait()
        if self.dead:
            raise EngineError("dead")

    def kill(self) -> None:
        self.killed += 1

    async def chunks(self, count: int) -> AsyncGenerator[Chunk, None]:
        try:
            for number in range(count):
                await asyncio.sleep(self.pause_s)
                await self.runs.wait()
                yield Chunk("x", number + 1, 1, 0)
        finally:
            self.closed += 1


def run(work: Callable[[Hangable, EngineWatch], Awaitable[None]], pause_s: float = 0.0) -> None:
    async def main() -> None:
        engine = Hangable(pause_s)
        watch = EngineWatch(engine.ping, engine.kill, ask_after_s=ASK_S, answer_s=ANSWER_S)
        looking = asyncio.create_task(watch.run())
        await work(engine, watch)
        looking.cancel()

    asyncio.run(main())


async def all_of(chunks: AsyncGenerator[Chunk, None]) -> int:
    return len([chunk async for chunk in chunks])


def test_what_a_hung_engine_has_is_told_so_before_and_behind_the_first_token() -> None:
    async def work(engine: Hangable, watch: EngineWatch) -> None:
        begun = watch.watched(engine.chunks(1000))
        await anext(begun)
        engine.runs.clear()
        waiting = [asyncio.create_task(all_of(watch.watched(engine.chunks(3)))) for _ in range(4)]
        began = time.monotonic()
        with pytest.raises(EngineGone, match="health_check_timeout_s"):
            await all_of(begun)
        assert time.monotonic() - began < 10 * ANSWER_S
        for each in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(each, EngineGone)
        assert engine.killed == 1
        assert engine.closed == 5, "every request was taken back from the engine"
        with pytest.raises(EngineGone):
            watch.check()
        with pytest.raises(EngineGone):
            await all_of(watch.watched(engine.chunks(3)))

    run(work)


def test_an_engine_that_answers_again_is_taken_again() -> None:
    async def work(engine: Hangable, watch: EngineWatch) -> None:
        engine.runs.clear()
        with pytest.raises(EngineGone):
            await all_of(watch.watched(engine.chunks(3)))
        engine.runs.set()
        await asyncio.sleep(0.05)
        watch.check()
        assert await all_of(watch.watched(engine.chunks(3))) == 3

    run(work)


def test_an_engine_killed_for_hanging_stays_gone() -> None:
    async def work(engine: Hangable, watch: EngineWatch) -> None:
        engine.runs.clear()
        with pytest.raises(EngineGone):
            await all_of(watch.watched(engine.chunks(3)))
        engine.dead = True
        engine.runs.set()
        await asyncio.sleep(0.05)
        with pytest.raises(EngineGone):
            watch.check()

    run(work)


def test_a_slow_engine_keeps_what_it_has() -> None:
    """A prefill longer than all limits: between its steps the engine answers."""

    async def work(engine: Hangable, watch: EngineWatch) -> None:
        assert await all_of(watch.watched(engine.chunks(2))) == 2
        assert engine.pings >= 3
        assert not engine.killed

    run(work, pause_s=1.5 * ANSWER_S)


def test_an_idle_engine_is_not_asked() -> None:
    async def work(engine: Hangable, watch: EngineWatch) -> None:
        await asyncio.sleep(4 * ASK_S)
        assert not engine.pings

    run(work)


def test_a_caller_that_leaves_leaves_nothing_behind() -> None:
    async def work(engine: Hangable, watch: EngineWatch) -> None:
        left = watch.watched(engine.chunks(10))
        await anext(left)
        await left.aclose()
        assert engine.closed == 1
        cancelled = asyncio.create_task(all_of(watch.watched(engine.chunks(10))))
        engine.runs.clear()
        await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert engine.closed == 2
        await asyncio.sleep(ASK_S + ANSWER_S + 0.1)
        watch.check()

    run(work)


def test_the_engines_own_errors_come_through() -> None:
    async def failing() -> AsyncGenerator[Chunk, None]:
        yield Chunk("x", 1, 1, 0)
        raise EngineError("its own")

    async def work(engine: Hangable, watch: EngineWatch) -> None:
        with pytest.raises(EngineError, match="its own"):
            await all_of(watch.watched(failing()))

    run(work)
