"""The batching model, which skips what does not change, beside one that forms every step anew."""

from __future__ import annotations

import random
from collections import deque
from math import inf

import pytest

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import BlockId, RequestId
from cp_ray.replay.fleet.batching import BatchingReplica
from cp_ray.replay.fleet.clock import StepCost
from cp_ray.replay.fleet.job import Job, Live
from cp_ray.replay.fleet.policies.round_robin import RoundRobin
from cp_ray.replay.fleet.simulation import Replica, Simulation
from cp_ray.replay.fleet.view import FleetView
from cp_ray.replay.trace import TraceRequest

COST = StepCost(fixed_s=0.01, prefill_s=1e-4, pair_s=2.5e-9, decode_s=0.0004)


class StepByStep:
    """vLLM's order of things, word for word: all that run, in order of admission, in each step."""

    def __init__(self, cache: PrefixCache, step_tokens: int, sequences: int) -> None:
        self.cache, self.next_s = cache, inf
        self._step_tokens, self._sequences = step_tokens, sequences
        self._waiting: deque[Live] = deque()
        self._running: list[dict[str, int]] = []
        self._lives: list[Live] = []

    def submit(self, live: Live, now: float) -> None:
        self._waiting.append(live)
        if self.next_s == inf:
            self._begin(now)

    def advance(self) -> tuple[list[Live], list[Live]]:
        now, first, ended = self.next_s, [], []
        for live, state in zip(self._lives, self._running, strict=True):
            if state["done"] >= live.prompt_tokens:
                state["left"] -= state["takes"]
            else:
                state["done"] += state["takes"]
                if state["done"] >= live.prompt_tokens:
                    self.cache.prefilled(live.request_id)
                    live.first_s = now
                    first.append(live)
                    state["left"] -= 1
        for live, state in zip(self._lives, self._running, strict=True):
            if state["left"] <= 0:
                live.ended_s = now
                self.cache.release(live.request_id)
                ended.append(live)
        kept = [at for at, state in enumerate(self._running) if state["left"] > 0]
        self._lives = [self._lives[at] for at in kept]
        self._running = [self._running[at] for at in kept]
        self._begin(now)
        return first, ended

    def _begin(self, now: float) -> None:
        budget, seconds, answering = self._step_tokens, COST.fixed_s, 0
        while self._waiting and len(self._running) < self._sequences:
            spoken = sum(
                1
                if state["left"] and state["done"] >= live.prompt_tokens
                else live.prompt_tokens - state["done"]
                for live, state in zip(self._lives, self._running, strict=True)
            )
            if spoken >= self._step_tokens:
                break
            live = self._waiting[0]
            cached = self.cache.admit(live.request_id, live.pieces)
            if cached is None:
                break
            self._waiting.popleft()
            live.cached = cached
            self._lives.append(live)
            self._running.append({"done": cached, "left": live.job.output_tokens, "takes": 0})
        for live, state in zip(self._lives, self._running, strict=True):
            left = live.prompt_tokens - state["done"]
            state["takes"] = takes = min(max(left, 1), budget)
            budget -= takes
            if left > 0:
                seconds += COST.chunk_s(state["done"], takes)
            else:
                answering += 1
        self.next_s = now + seconds + COST.decode_s * answering if self._running else inf


def jobs(chance: random.Random, count: int) -> list[Job]:
    sizes = [chance.randrange(10, 900) for _ in range(8)]
    made = []
    for number in range(count):
        docs = chance.sample(range(8), chance.randrange(1, 4))
        request = TraceRequest(
            RequestId(f"q{number}"),
            "",
            tuple(BlockId(str(doc)) for doc in docs),
            tuple(sizes[doc] for doc in docs),
            chance.randrange(1, 60),
        )
        made.append(Job(request, chance.choice((1, 2, 9, 40))))
    return made


def played(
    replica: Replica, asked: list[Job], times: list[float]
) -> dict[str, tuple[int, float, float]]:
    simulation = Simulation([replica], RoundRobin(1), FleetView([replica.cache], None))
    simulation.open_loop(asked, times)
    replica.cache.check()
    return {one.request_id: (one.cached, one.first_s, one.ended_s) for one in simulation.done}


@pytest.mark.parametrize("seed", range(12))
def test_what_is_skipped_changes_nothing(seed: int) -> None:
    chance = random.Random(seed)
    step_tokens, sequences = chance.choice((64, 300, 2048)), chance.choice((3, 20, 60))
    asked = jobs(chance, 120)
    times, now = [], 0.0
    for _ in asked:
        now += chance.expovariate(chance.choice((2.0, 12.0)))
        times.append(now)
    tokens = chance.choice((4096, 1 << 20))
    slow = played(StepByStep(PrefixCache(tokens, 16), step_tokens, sequences), asked, times)
    fast = BatchingReplica(PrefixCache(tokens, 16), COST, step_tokens, sequences)
    for name, (cached, first_s, ended_s) in played(fast, asked, times).items():
        assert slow[name][0] == cached, name
        assert slow[name][1:] == pytest.approx((first_s, ended_s), abs=1e-9), name
