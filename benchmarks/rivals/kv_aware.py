"""vllm-router's `kv_aware`: by KV events of the engines, in place of its own history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.rivals.block_events import Publisher
from benchmarks.rivals.gateway import START_S, Gateway
from benchmarks.rivals.prompts import Encode, token_ids
from benchmarks.rivals.workers import MODEL
from cp_ray.core.types import Eviction
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.view import FleetView

EVENTS_S = 0.01
"""What events get to arrive before the next question: nothing in the router tells that they did."""


class VllmKvAware(Gateway):
    """Not the default of vllm-router; its other options are."""

    def __init__(self, replicas: int, encode: Encode) -> None:
        from zmq.sugar.context import Context

        self._context: Any = Context()
        self._engines = [Publisher(self._context, at) for at in range(replicas)]
        super().__init__(replicas, encode, ["vllm_router.launch_router"])
        for engine in self._engines:
            engine.wait_for_subscriber(START_S)

    def _policy(self, urls: Sequence[str]) -> list[str]:
        options = ["--policy", "kv_aware", "--kv-event-model", MODEL]
        for url, engine in zip(urls, self._engines, strict=True):
            options += ["--kv-event-source", f"{url}={engine.endpoint}"]
        return options

    def choose(self, live: Live, view: FleetView) -> int:
        sent = [engine.send() for engine in self._engines]
        if any(sent):
            time.sleep(EVENTS_S)
        return super().choose(live, view)

    def first_token(self, live: Live) -> None:
        super().first_token(live)
        self._engines[live.replica].stored(live.request_id, token_ids(live.pieces))

    def evicted(self, replica: int, evictions: Sequence[Eviction]) -> None:
        self._engines[replica].evicted(evictions)

    def close(self) -> None:
        super().close()
        for engine in self._engines:
            engine.close()
        self._context.destroy(linger=0)
