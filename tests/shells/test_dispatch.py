"""The dispatcher on real Serve replicas that die, stop or fail: no request is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from ray import serve

from cp_ray.errors import EngineError, InvalidRequest, Overloaded
from cp_ray.router.dispatch import REPLICA_LOST, Dispatcher
from cp_ray.router.liveness import Liveness
from tests.shells.trivial_engine import (
    BUG,
    BUSY,
    DIE_ON_PLAN,
    GONE_BEHIND,
    GONE_ON_PLAN,
    LONG,
    NORMAL,
    REFUSE,
    REPLICAS,
    SLOTS,
    patient,
    request,
    routed,
    served_by,
    step,
    wait_for_uids,
)

pytestmark = pytest.mark.ray
APP = "dispatching"


@pytest.fixture(scope="module")
def application(serve_url: str) -> Iterator[Any]:
    with routed(APP) as it:
        yield it


@pytest.fixture
def engine(application: Any) -> Any:
    return serve.get_deployment_handle("Engine", APP)


@pytest.fixture
def uids(engine: Any) -> list[str]:
    """Ids of the replicas, when all of them are up."""
    return wait_for_uids(engine, REPLICAS)


async def stopped_by(dispatcher: Dispatcher, uid: str) -> int:
    """Stop the process of a replica; returns its id."""
    deliveries = [d async for d in dispatcher.stream(step(uid), request())]
    assert deliveries[0].replica == uid
    pid = int(deliveries[0].chunks[0].text)
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_the_engines_own_error_comes_back_whole(engine: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(served_by(Dispatcher(engine), None, REFUSE))
    error = caught.value
    assert type(error) is InvalidRequest
    assert (error.message, error.param, error.code, error.status) == (
        "too long",
        "messages",
        "too_long",
        422,
    )


def test_a_bug_in_the_engine_is_an_engine_error(engine: Any) -> None:
    with pytest.raises(EngineError, match="ZeroDivisionError: oops"):
        asyncio.run(served_by(Dispatcher(engine), None, BUG))


def test_a_replica_lost_before_it_answers_costs_no_request(engine: Any, uids: list[str]) -> None:
    served = asyncio.run(served_by(Dispatcher(engine), step(uids[0]), DIE_ON_PLAN))
    assert served in uids[1:]


def test_a_replica_lost_while_it_answers_is_an_error_that_says_so(
    engine: Any, uids: list[str]
) -> None:
    async def broken() -> None:
        async for delivery in Dispatcher(engine).stream(step(uids[0]), request(LONG)):
            os.kill(int(delivery.chunks[0].text), signal.SIGKILL)

    with pytest.raises(EngineError, match="lost while it answered"):
        asyncio.run(broken())


def test_a_request_to_a_stopped_replica_goes_elsewhere_and_later_ones_at_once(
    engine: Any, uids: list[str]
) -> None:
    async def with_a_stop() -> tuple[list[str], list[float]]:
        dispatcher = patient(engine)
        pid = await stopped_by(dispatcher, uids[2])
        served, seconds = [], []
        try:
            for _ in range(2):
                began = time.monotonic()
                served.append(await served_by(dispatcher, step(uids[2])))
                seconds.append(time.monotonic() - began)
        finally:
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and served[-1] != uids[2]:
            await asyncio.sleep(0.1)
            served.append(await served_by(dispatcher, step(uids[2])))
        return served, seconds

    served, seconds = asyncio.run(with_a_stop())
    assert uids[2] not in served[:2]
    assert seconds[0] < 5
    assert seconds[1] < 0.6, "it is known to have stopped"
    assert served[-1] == uids[2], "it runs again"


def test_an_answer_whose_replica_stops_is_an_error_that_says_so(
    engine: Any, uids: list[str]
) -> None:
    async def broken() -> None:
        pid = 0
        try:
            async for delivery in patient(engine).stream(step(uids[2]), request(LONG)):
                pid = int(delivery.chunks[0].text)
                os.kill(pid, signal.SIGSTOP)
        finally:
            os.kill(pid, signal.SIGCONT)

    with pytest.raises(EngineError, match="lost while it answered") as caught:
        asyncio.run(asyncio.wait_for(broken(), 20))
    assert caught.value.code == REPLICA_LOST


def test_a_replica_that_is_only_slow_keeps_its_requests(engine: Any, uids: list[str]) -> None:
    assert asyncio.run(served_by(patient(engine), step(uids[1]), BUSY)) == uids[1]


def test_a_request_to_a_replica_whose_engine_is_gone_goes_elsewhere_and_later_ones_at_once(
    engine: Any, uids: list[str]
) -> None:
    async def ask() -> tuple[str, frozenset[str], str]:
        liveness = Liveness(engine)
        dispatcher = Dispatcher(engine, liveness)
        served = await served_by(dispatcher, step(uids[3]), GONE_ON_PLAN)
        left_out = liveness.stopped
        return served, left_out, await served_by(dispatcher, step(uids[3]), NORMAL)

    served, left_out, later = asyncio.run(ask())
    assert served != uids[3]
    assert left_out == {uids[3]}
    assert later != uids[3]


def test_an_answer_whose_engine_is_lost_is_an_error_that_says_so(
    engine: Any, uids: list[str]
) -> None:
    with pytest.raises(EngineError, match="lost while it answered") as caught:
        asyncio.run(served_by(Dispatcher(engine), step(uids[3]), GONE_BEHIND))
    assert caught.value.code == REPLICA_LOST


def test_closing_the_stream_aborts_the_request_in_the_engine(engine: Any, uids: list[str]) -> None:
    async def close_early() -> list[str]:
        stream = Dispatcher(engine).stream(step(uids[1]), request(LONG, "closed"))
        async with aclosing(stream):
            await anext(stream)
        for _ in range(50):
            await asyncio.sleep(0.1)
            aborted = [
                name for _, names in await engine.broadcast("who").results_async() for name in names
            ]
            if "closed" in aborted:
                return aborted
        return []

    assert "closed" in asyncio.run(close_early())


def test_a_full_queue_is_overload(engine: Any) -> None:
    async def flood() -> list[Any]:
        dispatcher = Dispatcher(engine.options())
        calls = [served_by(dispatcher, None) for _ in range(200 + SLOTS * REPLICAS + 150)]
        return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(flood())
    refused = [r for r in results if isinstance(r, Overloaded)]
    assert refused
    assert all(isinstance(r, str | Overloaded) for r in results)
    assert refused[0].status == 503
