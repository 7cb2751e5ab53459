"""Parts of the index actor whose own faults must neither be lost nor cost what they are not for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import ReplicaInfo
from cp_ray.errors import InvariantError
from cp_ray.index_actor import observer as observing
from cp_ray.index_actor.observer import Observer
from cp_ray.index_actor.report_reader import ReportReader
from cp_ray.index_actor.serve_live_set import LiveSet
from cp_ray.store.client import Store


class OneReplica(LiveSet):
    """Serve as it answers once."""

    async def _long_poll(self) -> None:
        self._tell({"r": {"page_size": 16, "capacity_tokens": 1000}})


@pytest.mark.parametrize("fault", [KeyError("x"), AttributeError("x"), ValueError("x")])
def test_a_live_set_that_the_index_cannot_follow_ends_the_task_and_is_not_taken_for_rays_fault(
    fault: Exception,
) -> None:
    """The actor then begins anew (test_index_faults.py), in place of planning without replicas."""

    def fails(live: list[ReplicaInfo]) -> None:
        raise fault

    async def main() -> None:
        live_set = OneReplica("app", "Engine", fails)
        with pytest.raises(InvariantError, match="live set") as caught:
            await asyncio.wait_for(live_set.run(), 3)
        assert caught.value.__cause__ is fault
        assert live_set.source == "long_poll"

    asyncio.run(main())


def test_what_fails_in_looking_at_the_index_is_said_once_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observing, "EMIT_S", 0.01)
    index = ContextIndex()
    observer = Observer(
        "app", index, ReportReader(no_store, index.apply, index.dump_requests), None
    )
    faults = [RuntimeError("no metrics today"), RuntimeError("nor now")]
    emitted: list[bool] = []

    def emit() -> None:
        if faults:
            raise faults.pop()
        emitted.append(True)

    monkeypatch.setattr(observer, "_emit", emit)

    async def main(true: Callable[[], bool]) -> None:
        task = asyncio.create_task(observer.run())
        async with asyncio.timeout(3):
            while not true():  # noqa: ASYNC110 - the task makes it true
                await asyncio.sleep(0.01)
        task.cancel()

    with caplog.at_level(logging.ERROR, "ray.serve"):
        asyncio.run(main(lambda: bool(emitted)))
    assert len(caplog.records) == 1


async def no_store() -> Store:
    raise AssertionError("not used")
