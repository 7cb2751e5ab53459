"""What is believed of a real vLLM's cache: overflow, losses, resets, aborts, late tokens."""

import asyncio
import random
import time

import pytest

from cp_ray.workers import kv_events
from tests.contract import real_engine, suite
from tests.contract.lossy import loses

real_engine.only("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


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
            await asyncio.sleep(0.02)
            assert asked.request_id not in subject.ear.left, "nothing of it is lost"
        return pairs

    pairs = loop.run(run())
    assert [predicted for predicted, _ in pairs] == [actual for _, actual in pairs]
    assert len({actual for _, actual in pairs}) > 3, "the workload must both hit and miss"
    assert len(subject.ear.left) > 20, "the workload must overflow the cache"


def test_a_lost_batch_is_replayed_and_a_hole_resets_the_cache(loop, subject):
    prompt = suite.tokens(97)
    events = subject.engine._events

    async def run() -> None:
        lost: list[int] = []

        def one(number: int) -> bool:
            lost.append(number)
            return len(lost) == 1

        await suite.answer(subject, suite.request(suite.tokens(33)))
        epochs = subject.ear.epochs
        with loses(events, one):
            await suite.answer(subject, suite.request(suite.tokens(33)))  # awaited by the old one
            await asyncio.sleep(0.05)
            await suite.cached(subject, prompt)
            await asyncio.sleep(0.05)
            assert subject.engine.held_tokens(prompt) == 0
            await suite.answer(subject, suite.request(suite.tokens(33)))
            await asyncio.sleep(0.15)
            assert subject.engine.held_tokens(prompt) == 96
            assert subject.ear.epochs == epochs

            endpoint, events._replay_endpoint = events._replay_endpoint, "ipc:///nowhere/replay"
            lost.clear()
            for _ in range(2):
                await suite.answer(subject, suite.request(suite.tokens(33)))
                await asyncio.sleep(0.05)
            await suite.until(lambda: subject.ear.epochs > epochs, "a new epoch after a hole")
            await asyncio.sleep(0.2)
            assert await suite.cached(subject, prompt) == 0
            events._replay_endpoint = endpoint

    loop.run(run())


@pytest.mark.parametrize("replays", [True, False], ids=["replayed", "not replayed"])
def test_lost_batches_fail_no_request_and_leave_no_wrong_prediction(
    loop, subject, replays, monkeypatch
):
    """Every hole is one that was made here, and after it the engine is followed again."""
    source = random.Random(11)
    documents = [suite.tokens(70) for _ in range(30)]
    events = subject.engine._events
    lost: list[int] = []
    on = True

    def some(number: int) -> bool:
        if on and source.random() < 0.1:
            lost.append(number)
            return True
        return False

    async def run(count: int) -> list[tuple[int, int]]:
        audits = []
        for _ in range(count):
            prompt = sum(source.sample(documents, 3), ()) + suite.tokens(9)
            last = (await suite.answer(subject, suite.request(prompt, max_tokens=3)))[-1]
            await asyncio.sleep(0.01)
            if last.held_tokens is not None:
                audits.append((last.held_tokens, last.cached_tokens))
        return audits

    # On a busy machine a replay takes longer than the engine is given while it serves.
    monkeypatch.setattr(kv_events, "_REPLAY_TIMEOUT_S", 30.0 if replays else 0.05)
    if not replays:
        monkeypatch.setattr(events, "_replay_endpoint", "ipc:///nowhere/replay")
    epochs = subject.ear.epochs
    with loses(events, some):
        audits = loop.run(run(120))
        on = False
        audits += loop.run(run(2))
    after = loop.run(run(30))
    assert len(lost) >= 3
    assert len(audits) > 40
    assert len(after) > 25, "the engine is followed again"
    assert all(abs(held - cached) <= 32 for held, cached in audits + after)
    # A hole is an epoch, and so is the reset it asks for; its own word may come as a third.
    assert subject.ear.epochs == epochs if replays else epochs < subject.ear.epochs
    assert subject.ear.epochs <= epochs + 3 * len(lost)


def test_a_reset_whose_word_comes_before_it_returns_leaves_the_engine_followed(loop, subject):
    """A busy engine publishes its next step while the answer to the reset is still on its way."""
    llm, view = subject.engine._llm, subject.engine._view
    reset = llm.reset_prefix_cache

    async def slow(**options: bool) -> bool:
        done: bool = await reset(**options)
        await asyncio.sleep(0.2)
        return done

    async def run() -> None:
        epochs = subject.ear.epochs
        running = [
            asyncio.create_task(answer)
            for answer in (
                suite.answer(subject, suite.request(suite.tokens(200), max_tokens=100))
                for _ in range(3)
            )
        ]
        await asyncio.sleep(0.1)
        llm.reset_prefix_cache = slow
        try:
            await subject.engine.reset_cache()
        finally:
            llm.reset_prefix_cache = reset
        assert view._heard, "the engine's word came first"
        assert (view._unheard, view._lost) == (0, False)
        await asyncio.gather(*running)
        assert subject.ear.epochs == epochs + 1
        prompt = suite.tokens(97)
        await suite.cached(subject, prompt)
        await asyncio.sleep(0.05)
        assert subject.engine.held_tokens(prompt) == 96

    loop.run(run())


def test_resets_under_load_leave_the_view_right(loop, subject):
    source = random.Random(5)
    documents = [suite.tokens(70) for _ in range(8)]
    audits: list[tuple[int | None, int]] = []
    done = False

    async def ask() -> None:
        while not done:
            prompt = sum(source.sample(documents, 2), ()) + suite.tokens(9)
            last = (await suite.answer(subject, suite.request(prompt, max_tokens=5)))[-1]
            audits.append((last.held_tokens, last.cached_tokens))

    def known() -> list[tuple[int, int]]:
        return [(held, cached) for held, cached in audits if held is not None]

    async def run() -> None:
        nonlocal done
        asking = [asyncio.create_task(ask()) for _ in range(6)]
        for _ in range(15):
            await asyncio.sleep(0.1)
            await asyncio.gather(*(subject.engine.reset_cache() for _ in range(2)))
        before = len(known())
        await suite.until(lambda: len(known()) > before + 20, "answers are audited after resets")
        done = True
        await asyncio.gather(*asking)

    loop.run(run())
    assert all(abs(held - cached) <= 32 for held, cached in known())
    loop.run(no_ghosts(subject))


def test_tokens_seen_late_leave_no_ghost(loop, subject):
    """The event loop stands still now and then; steps that evict overtake the tokens."""
    source = random.Random(6)

    async def stand_still() -> None:
        while True:
            await asyncio.sleep(source.uniform(0.01, 0.1))
            time.sleep(0.15)  # noqa: ASYNC251 - that is the fault

    async def ask() -> None:
        for _ in range(12):
            prompt = suite.tokens(source.randrange(100, 500))
            await suite.answer(subject, suite.request(prompt, max_tokens=1))

    async def run() -> None:
        standing = asyncio.create_task(stand_still())
        await asyncio.gather(*(ask() for _ in range(8)))
        standing.cancel()
        await no_ghosts(subject)

    loop.run(run())


async def no_ghosts(subject: suite.Subject) -> None:
    """Every request that is believed to be held is found, as much of it."""
    await suite.answer(subject, suite.request(suite.tokens(40)))
    await asyncio.sleep(0.05)
    residency = subject.engine._view.residency  # type: ignore[attr-defined]
    residency.check()
    trie = residency._trie
    for request, last in residency._followed._at.items():
        slot = last
        while slot:
            assert trie.copies[slot], f"{request} is believed to have a block that is gone"
            slot = trie.parent[slot]


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
