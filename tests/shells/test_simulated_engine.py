"""The simulated engine: answers, time, cache, aborts, refusals."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import TypeVar

import pytest

from cp_ray.config import AppConfig
from cp_ray.core.packed import packed
from cp_ray.core.types import Eviction, RequestId
from cp_ray.errors import EngineError, EngineUnavailable, InvalidRequest
from cp_ray.workers.engine import Chunk, EngineRequest, Sampling
from cp_ray.workers.simulated_engine import SimulatedEngine

T = TypeVar("T")


class Listener:
    def __init__(self) -> None:
        self.lost: list[Eviction] = []
        self.epochs = 0

    def evicted(self, evictions: list[Eviction]) -> None:
        self.lost += evictions

    def new_epoch(self) -> None:
        self.epochs += 1


def engine(**settings: int) -> tuple[SimulatedEngine, Listener]:
    fast = {"prefill_tokens_per_s": 1_000_000, "decode_tokens_per_s": 100_000, "page_size": 4}
    made = SimulatedEngine(AppConfig.model_validate({"engine": "simulated", **fast, **settings}))
    return made, Listener()


def ask(request: str, prompt: range, max_tokens: int = 3, **sampling: object) -> EngineRequest:
    how = Sampling(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return EngineRequest(RequestId(request), packed(prompt), how)


async def answer(running: SimulatedEngine, request: EngineRequest) -> list[Chunk]:
    return [chunk async for chunk in running.generate(request)]


def run(steps: Coroutine[None, None, T]) -> T:
    return asyncio.run(steps)


def test_every_answer_says_that_it_is_simulated_and_has_the_tokens_asked_for():
    async def steps() -> None:
        made, listener = engine()
        info = await made.start(listener)
        assert info.simulated
        assert info.engine == "simulated"
        chunks = await answer(made, ask("r0", range(9)))
        assert "".join(chunk.text for chunk in chunks) == "[simulated] token token"
        assert [chunk.completion_tokens for chunk in chunks] == [1, 2, 3]
        assert [chunk.finish_reason for chunk in chunks] == [None, None, "length"]
        assert chunks[0].prompt_tokens == 9

    run(steps())


@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [("tok", "[simulated] ", 2), ("d] t", "[simulate", 1), ("[", "", 0), ("absent", None, 3)],
)
def test_a_stop_string_ends_the_answer_before_it(stop: str, text: str | None, tokens: int):
    async def steps() -> None:
        made, listener = engine()
        await made.start(listener)
        chunks = await answer(made, ask("r0", range(9), stop=(stop,)))
        if text is None:
            assert chunks[-1].finish_reason == "length"
        else:
            assert "".join(chunk.text for chunk in chunks) == text
            assert chunks[-1].finish_reason == "stop"
        assert chunks[-1].completion_tokens == tokens

    run(steps())


def test_a_repeat_is_cached_and_a_salt_keeps_it_apart():
    async def steps() -> None:
        made, listener = engine()
        await made.start(listener)
        assert (await answer(made, ask("r0", range(10))))[0].cached_tokens == 0
        assert (await answer(made, ask("r1", range(10))))[0].cached_tokens == 8
        salted = EngineRequest(RequestId("r2"), packed(range(10)), Sampling(), cache_salt="other")
        assert (await answer(made, salted))[0].cached_tokens == 0

    run(steps())


def test_prefill_is_serial_and_only_uncached_tokens_take_time():
    async def steps() -> tuple[float, float, float]:
        made, listener = engine(prefill_tokens_per_s=10_000)
        await made.start(listener)
        clock = asyncio.get_running_loop().time
        begun = clock()

        async def first_token(request: EngineRequest) -> float:
            async for _ in made.generate(request):
                return clock() - begun
            raise AssertionError

        return await asyncio.gather(
            first_token(ask("r0", range(1000))),
            first_token(ask("r1", range(1, 1001))),
            first_token(ask("r2", range(1000))),
        )

    first, second, repeat = run(steps())
    assert 0.1 <= first < second
    assert 0.2 <= second <= repeat < 0.3


def test_decode_takes_its_time_for_each_token():
    async def steps() -> float:
        made, listener = engine(decode_tokens_per_s=100)
        await made.start(listener)
        clock = asyncio.get_running_loop().time
        begun = clock()
        await asyncio.gather(*(answer(made, ask(f"r{n}", range(9), 11)) for n in range(4)))
        return clock() - begun

    assert 0.1 <= run(steps()) < 0.3


def test_evictions_are_reported_and_a_reset_is_a_new_epoch():
    async def steps() -> None:
        made, listener = engine(cache_tokens=64)
        await made.start(listener)
        await answer(made, ask("r0", range(40)))
        await answer(made, ask("r1", range(100, 140)))
        assert listener.lost == [Eviction(RequestId("r0"), 24)]
        await made.reset_cache()
        assert listener.epochs == 1
        assert (await answer(made, ask("r2", range(40))))[0].cached_tokens == 0

    run(steps())


def test_closing_the_stream_frees_the_cache_for_the_next():
    async def steps() -> None:
        made, listener = engine(cache_tokens=64)
        await made.start(listener)
        stream = made.generate(ask("r0", range(60), 1000))
        await anext(stream)
        waiting = asyncio.create_task(answer(made, ask("r1", range(100, 160))))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        assert isinstance(stream, AsyncGenerator)
        await stream.aclose()
        assert len(await asyncio.wait_for(waiting, 1)) == 3

    run(steps())


def test_an_abort_during_prefill_frees_the_engine_and_leaves_nothing_cached():
    async def steps() -> None:
        made, listener = engine(prefill_tokens_per_s=100)
        await made.start(listener)
        slow = asyncio.create_task(answer(made, ask("r0", range(1000))))
        await asyncio.sleep(0.02)
        slow.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await slow
        chunks = await asyncio.wait_for(answer(made, ask("r1", range(5))), 1)
        assert chunks[0].cached_tokens == 0

    run(steps())


@pytest.mark.parametrize("settings", [{"max_model_len": 64}, {"cache_tokens": 64}])
def test_a_prompt_that_cannot_fit_is_refused_by_name(settings: dict[str, int]):
    async def steps() -> None:
        made, listener = engine(**settings)
        await made.start(listener)
        with pytest.raises(InvalidRequest, match="fewer or shorter") as caught:
            await answer(made, ask("r0", range(65)))
        assert caught.value.param == "messages"
        with pytest.raises(InvalidRequest, match="empty"):
            await answer(made, ask("r1", range(0)))

    run(steps())


def test_output_ends_at_the_length_of_the_model():
    async def steps() -> None:
        made, listener = engine(max_model_len=64)
        await made.start(listener)
        assert len(await answer(made, ask("r0", range(60), 100))) == 4

    run(steps())


def test_before_start_and_after_close_it_says_so():
    async def steps() -> None:
        made, listener = engine(decode_tokens_per_s=100)
        with pytest.raises(EngineUnavailable, match="start"):
            await answer(made, ask("r0", range(5)))
        await made.start(listener)
        running = asyncio.create_task(answer(made, ask("r1", range(5), 1000)))
        await asyncio.sleep(0.02)
        await made.close()
        await made.close()
        with pytest.raises(EngineError, match="closed"):
            await running
        with pytest.raises(EngineError):
            await made.check_health()

    run(steps())
