"""The real SGLang, on CPU in a mode it does not support: one engine of 64 pages for the whole file.

Runs in SGLang's own environment: `make test-sglang`.
"""

import asyncio
import logging
import random

import pytest

from cp_ray.config import AppConfig
from cp_ray.core.packed import packed
from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError, InvalidRequest
from cp_ray.workers.engine import EngineRequest, Sampling
from cp_ray.workers.sglang_engine import SglangEngine
from tests.contract import real_engine, suite

real_engine.only("sglang")
pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

PAGE, PAGES = real_engine.CONFIGS["sglang"].page_size, real_engine.PAGES


async def check_siblings_share_what_is_prefilled(subject: suite.Subject) -> None:
    """Those prefilled together with the first miss, as it is inserted when its prefill is done."""
    prefix = suite.tokens(10 * subject.page)
    asked = [suite.request(prefix + suite.tokens(5)) for _ in range(8)]
    answers = await asyncio.gather(*(suite.answer(subject, sibling) for sibling in asked))
    hits = {chunks[-1].cached_tokens for chunks in answers}
    assert hits <= {0, 10 * subject.page}
    assert 0 in hits
    assert await suite.cached(subject, prefix + suite.tokens(5)) == 10 * subject.page
    held = subject.engine.held()
    assert {held[sibling.request_id] for sibling in asked} == {10 * subject.page}


CHECKS = [
    check_siblings_share_what_is_prefilled
    if check is suite.check_eight_siblings_share_a_cold_prefix
    else check
    for check in suite.CHECKS
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(loop, subject, check):
    loop.run(check(subject))


def test_its_facts_are_those_that_were_asked_for(subject):
    assert subject.info.engine == "sglang"
    assert (subject.page, subject.pages) == (PAGE, PAGES)
    assert subject.info.max_model_len <= PAGE * PAGES


def test_our_warnings_are_still_heard(subject):
    assert logging.getLogger("cp_ray.workers.kv_events").isEnabledFor(logging.WARNING)


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
            await real_engine.until_heard(subject, prompt)
            await asyncio.sleep(0.03)
            assert asked.request_id not in subject.ear.left, "nothing of it is lost"
        return pairs

    epochs = subject.ear.epochs
    pairs = loop.run(run())
    assert [predicted for predicted, _ in pairs] == [actual for _, actual in pairs]
    assert len({actual for _, actual in pairs}) > 3, "the workload must both hit and miss"
    assert len(subject.ear.left) > 20, "the workload must overflow the cache"
    assert subject.ear.epochs == epochs, "no false alarm"


def test_aborted_and_retracted_requests_leave_the_view_right(loop, subject):
    """More than fits runs at once, so SGLang retracts; a third of the callers go away."""
    source = random.Random(13)
    head = suite.tokens(2 * PAGE)

    async def one() -> tuple[int | None, int] | None:
        prompt = head + suite.tokens(source.randrange(50, 200))
        asked = suite.request(prompt, max_tokens=source.randrange(40, 160))
        patience = source.uniform(0, 0.5) if source.random() < 0.33 else None
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
    assert all(abs((held or 0) - cached) <= PAGE for held, cached in audits)
    assert subject.ear.epochs == epochs, "no false alarm"
    held = subject.engine.held()
    assert all(left <= held.get(name, 0) for name, left in subject.ear.left.items() if left)


def test_a_reset_in_the_middle_of_answers_lets_them_end(loop, subject):
    async def run() -> None:
        prompt = suite.tokens(5 * PAGE + 1)
        asked = [suite.request(prompt + suite.tokens(9), max_tokens=60) for _ in range(3)]
        answers = [asyncio.create_task(suite.answer(subject, request)) for request in asked]
        await asyncio.sleep(0.2)
        epochs = subject.ear.epochs
        await subject.engine.reset_cache()
        assert subject.ear.epochs == epochs + 1
        for chunks in await asyncio.gather(*answers):
            assert (chunks[-1].completion_tokens, chunks[-1].finish_reason) == (60, "length")
        assert await suite.cached(subject, prompt) == 5 * PAGE, "prefilled again, and cached"
        assert subject.ear.epochs == epochs + 1

    loop.run(run())


def test_an_abort_ends_no_request_whose_name_goes_on(loop, subject):
    async def run() -> None:
        sampling = Sampling(max_tokens=80, temperature=0, ignore_eos=True)
        long = EngineRequest(RequestId("name-and-more"), packed(suite.tokens(40)), sampling)
        other = asyncio.create_task(suite.answer(subject, long))
        short = subject.engine.generate(EngineRequest(RequestId("name"), long.prompt, sampling))
        await anext(short)
        await short.aclose()
        assert (await other)[-1].completion_tokens == 80

    loop.run(run())


def test_the_longest_prompt_is_answered_and_not_held_back_for_ever(loop, subject):
    async def run() -> None:
        longest = subject.info.max_model_len - 1
        last = (await suite.answer(subject, suite.request(suite.tokens(longest), 500)))[-1]
        assert (last.prompt_tokens, last.finish_reason) == (longest, "length")

    loop.run(run())


def test_a_lost_event_is_replayed_and_a_hole_resets_the_cache(loop, subject):
    prompt = suite.tokens(6 * PAGE + 1)
    events = subject.engine._events
    take = events._take

    def lose_one(sequence: int, payload: bytes) -> None:
        events._take = take

    async def run() -> None:
        epochs = subject.ear.epochs
        await asyncio.sleep(0.1)
        events._take = lose_one
        await suite.cached(subject, prompt)
        await suite.until(lambda: events._take == take, "a batch was lost")
        await suite.answer(subject, suite.request(suite.tokens(33)))
        await suite.until(lambda: subject.engine.held_tokens(prompt) == 6 * PAGE, "it is replayed")
        assert subject.ear.epochs == epochs

        await asyncio.sleep(0.1)
        endpoint, events._replay_endpoint = events._replay_endpoint, "ipc:///nonexistent/replay"
        events._take = lose_one
        for _ in range(2):
            await suite.answer(subject, suite.request(suite.tokens(33)))
            await asyncio.sleep(0.1)
        await suite.until(lambda: subject.ear.epochs > epochs, "a new epoch after a hole")
        await asyncio.sleep(0.5)
        assert await suite.cached(subject, prompt) == 0
        events._replay_endpoint = endpoint

    loop.run(run())


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ((5, 6), Sampling(top_p=2.0)),
        ((5, 6), Sampling(temperature=-1)),
        ((5, 10**7), Sampling()),
        ((), Sampling()),
    ],
)
def test_what_sglang_refuses_is_the_callers_fault(loop, subject, prompt, sampling):
    async def run() -> None:
        with pytest.raises(InvalidRequest, match="SGLang refuses"):
            await suite.answer(subject, EngineRequest(RequestId("bad"), packed(prompt), sampling))
        await subject.engine.check_health()

    loop.run(run())


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"disable_radix_cache": True}, "nothing to reuse"),
        ({"dp_size": 2}, "replicas="),
        ({"speculative_algorithm": "EAGLE"}, "pairs of tokens"),
        ({"context_length": 100}, "max_model_len="),
        ({"no_such_argument": 1}, "no_such_argument"),
    ],
)
def test_settings_that_break_the_contract_are_refused_with_the_reason(kwargs, said):
    engine = SglangEngine(AppConfig(engine="sglang", model="tiny", engine_kwargs=kwargs))
    with pytest.raises(ConfigError, match=said):
        asyncio.run(engine.start(suite.Ear()))
