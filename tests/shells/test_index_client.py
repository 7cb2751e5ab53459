"""The index client's background work, beside an actor that fails as no actor should."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from cp_ray.config import AppConfig
from cp_ray.core.types import Feedback, HeadId, PlanRequest, RequestId, Settled, Step
from cp_ray.index_actor import client as module
from cp_ray.index_actor.client import IndexClient
from cp_ray.index_actor.line import Lines
from cp_ray.store import wire

CONFIG = AppConfig(engine="simulated", plan_deadline_ms=400)
LONE_SURROGATE = RequestId("\ud800")
"""No text, so it cannot be encoded."""


class Method:
    """A method of an actor's handle."""

    def __init__(self, call: Any) -> None:
        self.remote = call


class Actor:
    """Answers as the index does. faults: raised by the next calls, one each."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.heard: list[Feedback] = []
        self.plan, self.hear, self.ready = map(Method, (self._plan, self._hear, self._ready))
        self.line = Method(self._where)

    async def _where(self) -> None:
        return None

    async def _ready(self) -> float:
        return time.monotonic()

    async def _hear(self, payload: bytes) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.heard += wire.decode(payload, list[Feedback])

    async def _plan(self, payload: bytes, deadline_s: float, heard: bytes) -> bytes:
        if heard:
            await self._hear(heard)
        requests = wire.decode(payload, list[PlanRequest])
        steps = [Step(r.request_id, r.context, None, "", (), 0, "load") for r in requests]
        return wire.encode(steps)


def run(actor: Actor, monkeypatch: pytest.MonkeyPatch, *waves: list[str]) -> IndexClient:
    """A client that tells each wave of ended requests; it waits until one was sent or forgotten."""
    monkeypatch.setattr(module, "obtain_index", lambda app, config: actor)
    monkeypatch.setattr(module, "PROBE_S", 0.01)

    async def main() -> IndexClient:
        client = IndexClient("app", CONFIG)
        client.start()
        for wave in waves:
            await until(lambda: client.up)
            for name in wave:
                client.feedback(Settled(RequestId(name), 0, ok=True))
            await until(lambda: not client._buffer and client.up)
        await client.close()
        return client

    return asyncio.run(main())


async def until(condition: Any) -> None:
    async with asyncio.timeout(3):
        while not condition():  # noqa: ASYNC110 - other tasks of this loop make it true
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.03)  # what was taken from the buffer is out


@pytest.mark.parametrize("fault", [RuntimeError("not foreseen"), KeyError("x"), OSError(5, "io")])
def test_whatever_ends_one_flush_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    actor = Actor(fault)
    with caplog.at_level(logging.WARNING, "ray.serve"):
        client = run(actor, monkeypatch, ["lost", "too"], ["heard"])
    assert [event.request_id for event in actor.heard] == ["heard"]
    assert client.counters()["feedback_dropped"] == 2
    assert client.counters()["faults"] == 1
    assert len(caplog.records) == 1, "said once"


def test_feedback_that_cannot_be_encoded_is_forgotten_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = Actor()
    client = run(actor, monkeypatch, [LONE_SURROGATE], ["heard"])
    assert [event.request_id for event in actor.heard] == ["heard"]
    assert client.counters()["feedback_dropped"] == 1


def test_a_plan_passes_through_whatever_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(RuntimeError("not foreseen"))
    monkeypatch.setattr(module, "obtain_index", lambda app, config: actor)
    monkeypatch.setattr(module, "PROBE_S", 0.01)
    monkeypatch.setattr(module, "FLUSH_S", 5.0)  # only plans take feedback along

    async def main() -> None:
        client = IndexClient("app", CONFIG)
        client.start()
        request = PlanRequest(RequestId("q"), HeadId("h"), 3, (), (), 3)
        await until(lambda: client.up)
        client.feedback(Settled(RequestId("lost"), 0, ok=True))
        assert await client.plan([request]) is None
        assert client.counters() == {
            "planned": 0,
            "passed_through": 1,
            "late": 0,
            "feedback_dropped": 1,
            "faults": 1,
        }
        await until(lambda: client.up)
        (step,) = await client.plan([request]) or []
        assert step.request_id == "q"
        assert actor.heard == [Settled(RequestId("q"), 0, ok=False)], "perhaps it was planned"
        await client.close()

    asyncio.run(main())


def test_a_line_to_a_process_that_hangs_is_left_for_the_one_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = Actor()

    def answer(payload: bytes, deadline_s: float, heard: bytes) -> bytes:
        requests = wire.decode(payload, list[PlanRequest])
        steps = [Step(r.request_id, r.context, None, "line", (), 0, "load") for r in requests]
        return wire.encode(steps)

    async def main() -> None:
        hangs, answers = Lines(answer, print), Lines(answer, print)
        asked = 0

        async def where() -> tuple[str, bytes] | None:
            nonlocal asked
            asked += 1
            return await (hangs if asked == 1 else answers).where()

        actor.line = Method(where)
        monkeypatch.setattr(module, "obtain_index", lambda app, config: actor)
        monkeypatch.setattr(module, "PROBE_S", 0.01)
        monkeypatch.setattr(module, "KEEPALIVE_S", 0.01)
        client = IndexClient("app", CONFIG)
        client.start()
        await until(lambda: client.up)
        (there,) = hangs.open
        assert there.transport is not None
        there.transport.pause_reading()
        request = PlanRequest(RequestId("r"), HeadId("h"), 0, (), (), 0)
        assert await client.plan([request]) is None, "late"
        await until(lambda: client.up)
        steps = await client.plan([request])
        assert steps is not None
        assert steps[0].branch == "line", "by the new one"
        await asyncio.sleep(0.1)
        assert asked == 2, "not at every look"
        await client.close()

    asyncio.run(main())


def test_who_has_no_line_does_not_ask_for_one_at_every_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor, asked = Actor(), 0

    async def nowhere() -> None:
        nonlocal asked
        asked += 1

    async def main() -> None:
        actor.line = Method(nowhere)
        monkeypatch.setattr(module, "obtain_index", lambda app, config: actor)
        monkeypatch.setattr(module, "KEEPALIVE_S", 0.01)
        client = IndexClient("app", CONFIG)
        client.start()
        await until(lambda: client.up)
        await asyncio.sleep(0.1)
        assert await client.plan([PlanRequest(RequestId("r"), HeadId("h"), 0, (), (), 0)])
        await client.close()

    asyncio.run(main())
    assert asked == 1
