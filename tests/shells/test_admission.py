"""Admission: places are never lost, whoever gives up and when; a flood does not hold others up."""

from __future__ import annotations

import asyncio
import random

import pytest

from cp_ray.errors import Overloaded
from cp_ray.router.admission import Admission
from cp_ray.router.api import ChatRequest, CompletionRequest
from cp_ray.router.planning import size_of


@pytest.mark.parametrize("seed", range(5))
def test_no_place_is_lost_whoever_gives_up(seed: int) -> None:
    source = random.Random(seed)
    told: list[int] = []
    admission = Admission(3, 6, told.append)
    under_way = most = refused = served = 0

    async def one(tenant: str) -> None:
        nonlocal under_way, most, refused, served
        try:
            async with admission.place(tenant, source.randrange(100)):
                under_way += 1
                most = max(most, under_way)
                try:
                    await asyncio.sleep(source.choice((0, 0.001)))
                    served += 1
                finally:
                    under_way -= 1
        except Overloaded as error:
            assert error.retry_after_s >= 1
            refused += 1

    async def main() -> None:
        tasks = []
        for _ in range(300):
            tasks.append(asyncio.create_task(one(source.choice("abc"))))
            if source.random() < 0.5:
                source.choice(tasks).cancel()
            if source.random() < 0.7:
                await asyncio.sleep(0)
        await asyncio.wait(tasks)
        admission._queue.check()
        assert (admission._queue.under_way, admission._queue.waiting) == (0, 0)
        assert not admission._turns

    asyncio.run(main())
    assert most == 3
    assert min(refused, served) > 10
    assert told[-1] == 0


def test_a_request_beside_a_flood_goes_next() -> None:
    admission = Admission(1, 100, lambda _: None)
    order: list[str] = []

    async def one(tenant: str) -> None:
        async with admission.place(tenant, 1000):
            order.append(tenant)
            await asyncio.sleep(0)

    async def main() -> None:
        tasks = [asyncio.create_task(one("flood")) for _ in range(50)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(one("small")))
        await asyncio.wait(tasks)

    asyncio.run(main())
    assert order.index("small") <= 2


def test_a_full_queue_refuses_the_flood_and_lets_others_wait() -> None:
    admission = Admission(1, 4, lambda _: None)
    answers: dict[str, list[bool]] = {"flood": [], "small": []}

    async def one(tenant: str) -> None:
        try:
            async with admission.place(tenant, 1):
                await asyncio.sleep(0)
                answers[tenant].append(True)
        except Overloaded:
            answers[tenant].append(False)

    async def main() -> None:
        tasks = [asyncio.create_task(one("flood")) for _ in range(20)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(one("small")) for _ in range(2)]
        await asyncio.wait(tasks)

    asyncio.run(main())
    assert answers["small"] == [True, True]
    assert answers["flood"].count(True) == 4, "five got in, one of them had to go"


def test_a_prompt_of_either_route_costs_its_characters() -> None:
    text = "x" * 5000
    chat = ChatRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": text}]}
    )
    assert size_of(chat) == 5000
    assert size_of(CompletionRequest.model_validate({"model": "m", "prompt": text})) == 5000
