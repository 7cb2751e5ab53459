"""What an engine takes into one step, on its way to the index."""

from __future__ import annotations

import asyncio

from cp_ray.core.types import ReplicaInfo
from cp_ray.index_actor.serve_live_set import LiveSet


class Told(LiveSet):
    """Serve as it answers once: one replica of now, one of a version that did not tell."""

    async def _long_poll(self) -> None:
        facts = {"page_size": 16, "capacity_tokens": 1000}
        self._tell({"new": {**facts, "step_tokens": 8192}, "old": facts})


def test_the_index_is_told_of_an_engines_steps() -> None:
    async def main() -> list[ReplicaInfo]:
        heard: asyncio.Queue[list[ReplicaInfo]] = asyncio.Queue()
        task = asyncio.create_task(Told("app", "Engine", heard.put_nowait).run())
        told = await asyncio.wait_for(heard.get(), 5)
        task.cancel()
        return told

    told = asyncio.run(main())
    assert {info.replica: info.step_tokens for info in told} == {"new": 8192, "old": 0}
