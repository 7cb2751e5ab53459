"""The real vLLM, on CPU: one engine of 64 cache blocks for the whole file."""

import asyncio
import importlib.util
import multiprocessing
import random

import pytest

from cp_ray.config import AppConfig
from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError, EngineError, InvalidRequest
from cp_ray.workers.engine import EngineRequest, Sampling
from tests.contract import suite

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

from cp_ray.workers.vllm_engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def subject(loop):
    config = AppConfig(model="tiny", cache_tokens=2048, max_ongoing_requests=8)
    started = loop.run(suite.start(lambda: VllmEngine(config)))
    yield started
    loop.run(suite.check_close_is_idempotent(started))


@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_contract(loop, subject, check):
    loop.run(check(subject))


def test_events_predict_what_the_engine_finds_cached_under_overflow(loop, subject):
    source = random.Random(7)
    documents = [suite.tokens(96) for _ in range(40)]
    head = suite.tokens(32)

    async def run() -> list[tuple[int, int]]:
        pairs = []
        for _ in range(150):
            prompt = head + sum(source.sample(documents[: source.choice([6, 40])], 3), ())
            prompt += suite.tokens(source.randrange(1, 60))
            asked = suite.request(prompt, max_tokens=source.randrange(1, 9))
            predicted = subject.engine.held_tokens(prompt)
            pairs.append((predicted, (await suite.answer(subject, asked))[-1].cached_tokens))
            await asyncio.sleep(0.02)  # the step's events come a few ms after its tokens
            claimed = subject.ear.left.get(asked.request_id, len(prompt) // 32 * 32)
            assert claimed <= subject.engine.held_tokens((*prompt, 0))
        return pairs

    pairs = loop.run(run())
    assert [predicted for predicted, _ in pairs] == [actual for _, actual in pairs]
    assert len({actual for _, actual in pairs}) > 3, "the workload must both hit and miss"
    assert len(subject.ear.left) > 20, "the workload must overflow the cache"


def test_a_lost_event_is_replayed_and_a_hole_resets_the_cache(loop, subject):
    prompt = suite.tokens(97)
    events = subject.engine._events
    take = events._take

    def lose_one(sequence: int, payload: bytes) -> None:
        events._take = take

    async def run() -> None:
        epochs = subject.ear.epochs
        events._take = lose_one
        await suite.cached(subject, prompt)
        await asyncio.sleep(0.05)
        assert subject.engine.held_tokens(prompt) == 0
        await suite.answer(subject, suite.request(suite.tokens(33)))
        await asyncio.sleep(0.1)
        assert subject.engine.held_tokens(prompt) == 96
        assert subject.ear.epochs == epochs

        endpoint, events._replay_endpoint = events._replay_endpoint, "ipc:///nonexistent/replay"
        events._take = lose_one
        for _ in range(2):
            await suite.answer(subject, suite.request(suite.tokens(33)))
            await asyncio.sleep(0.05)
        await suite.until(lambda: subject.ear.epochs > epochs, "a new epoch after a hole")
        await asyncio.sleep(0.2)
        assert await suite.cached(subject, prompt) == 0
        events._replay_endpoint = endpoint

    loop.run(run())


# Timing: a replay that comes late is, rightly, a hole. On a busy machine these see more holes than
# they inject, so they run in `make chaos` and not in `make test`.
@pytest.mark.chaos
@pytest.mark.parametrize("replays", [True, False], ids=["replayed", "not replayed"])
def test_lost_batches_fail_no_request_and_leave_no_wrong_prediction(loop, subject, replays):
    source = random.Random(11)
    documents = [suite.tokens(70) for _ in range(30)]
    events = subject.engine._events
    take, endpoint = events._take, events._replay_endpoint
    lost = []

    def lose_some(sequence: int, payload: bytes) -> None:
        if source.random() < 0.1:
            lost.append(sequence)  # and whatever is replayed of it goes through
            events._take = take
            asyncio.get_running_loop().call_soon(setattr, events, "_take", lose_some)
        else:
            take(sequence, payload)

    async def run() -> list[tuple[int, int]]:
        audits = []
        for _ in range(120):
            prompt = sum(source.sample(documents, 3), ()) + suite.tokens(9)
            last = (await suite.answer(subject, suite.request(prompt, max_tokens=3)))[-1]
            await asyncio.sleep(0.01)
            if last.held_tokens is not None:
                audits.append((last.held_tokens, last.cached_tokens))
        return audits

    epochs = subject.ear.epochs
    events._take = lose_some
    if not replays:
        events._replay_endpoint = "ipc:///nonexistent/replay"
    try:
        audits = loop.run(run())
    finally:
        events._take, events._replay_endpoint = take, endpoint
    assert len(lost) >= 3
    assert len(audits) > 40
    assert all(abs(held - cached) <= 32 for held, cached in audits)
    assert (subject.ear.epochs == epochs) is replays


@pytest.mark.chaos
def test_aborted_and_preempted_requests_leave_the_view_right(loop, subject):
    """More than fits runs at once, so vLLM preempts; a third of the callers go away."""
    source = random.Random(13)
    head = suite.tokens(64)

    async def one() -> tuple[int | None, int] | None:
        prompt = head + suite.tokens(source.randrange(100, 400))
        asked = suite.request(prompt, max_tokens=source.randrange(40, 160))
        patience = source.uniform(0, 0.3) if source.random() < 0.33 else None
        try:
            async with asyncio.timeout(patience):
                last = (await suite.answer(subject, asked))[-1]
        except TimeoutError:
            return None
        return last.held_tokens, last.cached_tokens

    async def run() -> list[tuple[int | None, int] | None]:
        answers = []
        for _ in range(8):
            answers += await asyncio.gather(*(one() for _ in range(8)))
        return answers

    epochs = subject.ear.epochs
    answers = loop.run(run())
    audits = [answer for answer in answers if answer is not None and answer[0] is not None]
    assert answers.count(None) > 5
    assert len(audits) > 20
    assert all(abs((held or 0) - cached) <= 32 for held, cached in audits)
    assert subject.ear.epochs == epochs, "no false alarm"
    held = subject.engine.held()
    assert all(left <= held.get(name, 0) for name, left in subject.ear.left.items() if left)


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [((5, 6), Sampling(top_p=2.0)), ((5, 6), Sampling(temperature=-1)), ((5, 10**7), Sampling())],
)
def test_what_vllm_refuses_is_the_callers_fault(loop, subject, prompt, sampling):
    async def run() -> None:
        with pytest.raises(InvalidRequest, match="vLLM refuses"):
            await suite.answer(subject, EngineRequest(RequestId("bad"), prompt, sampling))
        await subject.engine.check_health()

    loop.run(run())


def test_a_dead_engine_fails_its_requests_and_its_health_check(loop, subject):
    async def run() -> None:
        stream = subject.engine.generate(suite.request(suite.tokens(40), max_tokens=1500))
        await anext(stream)
        for process in multiprocessing.active_children():
            process.kill()
        with pytest.raises(EngineError):
            async for _ in stream:
                pass
        with pytest.raises(EngineError):
            await subject.engine.check_health()

    loop.run(run())


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"enable_prefix_caching": False}, "nothing to reuse"),
        ({"data_parallel_size": 2}, "replicas="),
        ({"max_model_len": 100}, "max_model_len="),
        ({"no_such_argument": 1}, "no_such_argument"),
    ],
)
def test_settings_that_break_the_contract_are_refused_with_the_reason(kwargs, said):
    engine = VllmEngine(AppConfig(model="tiny", engine_kwargs=kwargs))
    with pytest.raises(ConfigError, match=said):
        asyncio.run(engine.start(suite.Ear()))
