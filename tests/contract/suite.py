"""The engine contract as checks; every engine runs all of them, in this order, on one cache.

The subject's cache is small (a few dozen pages), so that evictions happen within seconds.
"""

import asyncio
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from cp_ray.core.packed import packed
from cp_ray.core.types import Eviction, RequestId
from cp_ray.errors import InvalidRequest
from cp_ray.workers.engine import Chunk, Engine, EngineFactory, EngineInfo, EngineRequest, Sampling

PATIENCE_S = 60.0
_ids = itertools.count()


@dataclass
class Ear:
    """A CacheListener that remembers: how much the index would believe of each request."""

    epochs: int = 0
    left: dict[RequestId, int] = field(default_factory=dict)
    reports: Counter[RequestId] = field(default_factory=Counter)

    def evicted(self, evictions: list[Eviction]) -> None:
        for eviction in evictions:
            before = self.left.get(eviction.request_id)
            assert before is None or eviction.tokens_left < before, "a report that loses nothing"
            self.left[eviction.request_id] = eviction.tokens_left
            self.reports[eviction.request_id] += 1

    def new_epoch(self) -> None:
        self.epochs += 1
        self.left.clear()


@dataclass
class Subject:
    engine: Engine
    info: EngineInfo
    ear: Ear

    @property
    def page(self) -> int:
        return self.info.page_size

    @property
    def pages(self) -> int:
        return self.info.capacity_tokens // self.info.page_size


async def start(make_engine: EngineFactory) -> Subject:
    engine, ear = make_engine(), Ear()
    return Subject(engine, await engine.start(ear), ear)


def tokens(count: int, seed: object = None) -> tuple[int, ...]:
    """A prompt like no other, or the same one for a seed."""
    source = random.Random(f"{seed}" if seed is not None else f"unique {next(_ids)}")
    return tuple(source.randrange(100, 40_000) for _ in range(count))


def request(
    prompt: tuple[int, ...],
    max_tokens: int = 2,
    salt: str | None = None,
    name: RequestId | None = None,
) -> EngineRequest:
    sampling = Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return EngineRequest(name or RequestId(f"q{next(_ids)}"), packed(prompt), sampling, salt)


async def answer(subject: Subject, asked: EngineRequest) -> list[Chunk]:
    async with asyncio.timeout(PATIENCE_S):
        return [chunk async for chunk in subject.engine.generate(asked)]


async def cached(subject: Subject, prompt: tuple[int, ...], salt: str | None = None) -> int:
    return (await answer(subject, request(prompt, salt=salt)))[-1].cached_tokens


async def until(condition, what: str) -> None:
    for _ in range(int(PATIENCE_S / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"never happened: {what}")


async def check_a_stream_is_the_whole_answer_in_order(subject: Subject) -> None:
    prompt = tokens(subject.page + 3)
    chunks = await answer(subject, request(prompt, max_tokens=12))
    assert len(chunks) > 1
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    counts = [chunk.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert {chunk.prompt_tokens for chunk in chunks} == {len(prompt)}
    again = await answer(subject, request(prompt, max_tokens=12))
    assert "".join(chunk.text for chunk in again) == "".join(chunk.text for chunk in chunks) != ""


async def check_a_repeated_prompt_hits_whole_pages(subject: Subject) -> None:
    page = subject.page
    for length, expected in ((5 * page + 7, 5 * page), (5 * page, 4 * page), (page, 0)):
        prompt = tokens(length)
        assert await cached(subject, prompt) == 0
        assert await cached(subject, prompt) == expected
        assert (
            await cached(subject, prompt[: 2 * page] + tokens(9)) == min(2, length // page) * page
        )


async def check_a_salt_keeps_prompts_apart(subject: Subject) -> None:
    prompt = tokens(3 * subject.page + 1)
    assert await cached(subject, prompt, salt="one") == 0
    assert await cached(subject, prompt, salt="two") == 0
    assert await cached(subject, prompt) == 0
    assert await cached(subject, prompt, salt="one") == 3 * subject.page


async def check_it_gives_a_sign_of_life_whatever_it_has_to_do(subject: Subject) -> None:
    await asyncio.wait_for(subject.engine.ping(), PATIENCE_S)
    third = tokens(subject.info.capacity_tokens // 3)
    answers = [asyncio.create_task(answer(subject, request(third, 30))) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.wait_for(subject.engine.ping(), PATIENCE_S)
    assert {len(each) > 0 for each in await asyncio.gather(*answers)} == {True}


async def check_a_closed_or_cancelled_request_frees_its_memory(subject: Subject) -> None:
    quarter = subject.info.capacity_tokens // 4 - subject.page
    streams = [subject.engine.generate(request(tokens(quarter), 500)) for _ in range(2)]
    for stream in streams:
        await anext(stream)
    await asyncio.gather(*(stream.aclose() for stream in streams))
    tasks = [asyncio.create_task(answer(subject, request(tokens(quarter), 500))) for _ in range(2)]
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    whole_cache = min(subject.info.capacity_tokens, subject.info.max_model_len) - subject.page
    assert len(await answer(subject, request(tokens(whole_cache), 1))) == 1


async def check_evictions_reach_the_listener(subject: Subject) -> None:
    first = request(tokens(4 * subject.page + 1))
    await answer(subject, first)
    for _ in range(subject.pages // 4 + 2):
        await answer(subject, request(tokens(4 * subject.page)))
    await until(lambda: subject.ear.left.get(first.request_id) == 0, "the eviction of a request")
    assert await cached(subject, tuple(first.tokens)) == 0


async def check_nothing_is_reported_lost_while_it_is_held(subject: Subject) -> None:
    kept = request(tokens(4 * subject.page + 1))
    await answer(subject, kept)
    for _ in range(subject.pages // 2):
        await answer(subject, request(tokens(4 * subject.page)))
        assert await cached(subject, tuple(kept.tokens)) == 4 * subject.page
    assert kept.request_id not in subject.ear.left


async def check_a_dump_lists_what_is_usable_and_agrees_with_the_reports(subject: Subject) -> None:
    first = request(tokens(4 * subject.page + 1))
    await answer(subject, first)
    await asyncio.sleep(0.05)
    assert subject.engine.held()[first.request_id] == 4 * subject.page
    for _ in range(subject.pages // 4 + 2):
        await answer(subject, request(tokens(4 * subject.page)))
        await asyncio.sleep(0.02)
        held = subject.engine.held()
        reported = {name: left for name, left in subject.ear.left.items() if left}
        assert {name: held[name] for name in reported} == reported
    await until(lambda: first.request_id not in subject.engine.held(), "it is evicted")


async def check_the_last_chunk_alone_is_an_audit_and_it_matches(subject: Subject) -> None:
    shared = tokens(3 * subject.page)
    audits = []
    for length in (5, subject.page, 2 * subject.page + 3):
        chunks = await answer(subject, request(shared + tokens(length), max_tokens=6))
        assert [chunk.held_tokens for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        audits.append((chunks[-1].held_tokens, chunks[-1].cached_tokens))
    assert all(held in (None, cached) for held, cached in audits)
    assert (3 * subject.page, 3 * subject.page) in audits


async def check_a_reset_of_an_idle_engine_is_known_before_the_next_request(
    subject: Subject,
) -> None:
    await answer(subject, request(tokens(3 * subject.page + 1)))
    await asyncio.sleep(0.05)
    assert subject.engine.held()
    epochs = subject.ear.epochs
    await subject.engine.reset_cache()
    assert subject.ear.epochs == epochs + 1
    assert subject.engine.held() == {}
    await answer(subject, request(tokens(3 * subject.page + 1)))
    await asyncio.sleep(0.05)
    assert subject.ear.epochs == epochs + 1, "the engine's own word of it comes later: no second"
    assert len(subject.engine.held()) == 1


async def check_a_reset_is_a_new_epoch(subject: Subject) -> None:
    prompt = tokens(3 * subject.page + 1)
    await answer(subject, request(prompt))
    before = subject.ear.epochs
    await subject.engine.reset_cache()
    assert subject.ear.epochs > before
    assert await cached(subject, prompt) == 0
    assert await cached(subject, prompt) == 3 * subject.page


async def check_a_prompt_too_long_is_refused_with_both_numbers(subject: Subject) -> None:
    longest = min(subject.info.max_model_len - 1, subject.info.capacity_tokens)
    with pytest.raises(InvalidRequest) as refusal:
        await answer(subject, request(tokens(longest + 1)))
    error = refusal.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
    assert str(longest + 1) in error.message
    assert str(longest) in error.message
    assert await answer(subject, request(tokens(9)))


async def check_eight_siblings_share_a_cold_prefix(subject: Subject) -> None:
    prefix = tokens(10 * subject.page)
    asked = [request(prefix + tokens(5)) for _ in range(8)]
    answers = await asyncio.gather(*(answer(subject, sibling) for sibling in asked))
    hits = sorted(chunks[-1].cached_tokens for chunks in answers)
    assert hits == [0] + [10 * subject.page] * 7


async def check_it_is_healthy(subject: Subject) -> None:
    await subject.engine.check_health()


async def check_close_is_idempotent(subject: Subject) -> None:
    await subject.engine.close()
    await subject.engine.close()


CHECKS = [
    check_a_stream_is_the_whole_answer_in_order,
    check_a_repeated_prompt_hits_whole_pages,
    check_a_salt_keeps_prompts_apart,
    check_it_gives_a_sign_of_life_whatever_it_has_to_do,
    check_a_closed_or_cancelled_request_frees_its_memory,
    check_evictions_reach_the_listener,
    check_nothing_is_reported_lost_while_it_is_held,
    check_a_dump_lists_what_is_usable_and_agrees_with_the_reports,
    check_the_last_chunk_alone_is_an_audit_and_it_matches,
    check_a_reset_of_an_idle_engine_is_known_before_the_next_request,
    check_a_reset_is_a_new_epoch,
    check_a_prompt_too_long_is_refused_with_both_numbers,
    check_eight_siblings_share_a_cold_prefix,
    check_it_is_healthy,
]
