"""Model `batching`: continuous batching with chunked prefill; prefills and answers share steps.

As vLLM's scheduler: in each step the running requests come first, in order of admission (one token
for each that answers, a chunk for each that is still prefilled), then waiting ones are admitted
while tokens of the step's budget, sequences and cache pages are left. Everybody in a step waits for
its end. Left out: preemption, and pages of output tokens (`core/prefix_cache` has none).
`tests/fleet/test_batching_against_vllm.py` runs vLLM's own Scheduler beside it.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.replay.fleet.clock import StepCost
from cp_ray.replay.fleet.job import Live

STEP_TOKENS = 8192
"""vLLM's max_num_batched_tokens for online serving on large GPUs."""
SEQUENCES = 256


class BatchingReplica:
    """One replica. `next_s`: when it next has something to tell; `advance` then returns it.

    Steps in which all only answer are alike until one ends or a request comes: they are taken at
    once (`_leap` of them). A step costs no work for those that answer: each gets one token in
    every step, so an answer ends when `_ticks`, the steps so far, reaches a number known at its
    first token. This holds because a prompt that a step leaves unfinished took the last of the
    budget: it is the newest of those that run, all others answer, and these come first.
    """

    def __init__(
        self,
        cache: PrefixCache,
        cost: StepCost,
        step_tokens: int = STEP_TOKENS,
        sequences: int = SEQUENCES,
    ) -> None:
        self.cache = cache
        self.next_s = inf
        self._cost = cost
        self._step_tokens = step_tokens
        # As vLLM demands: with fewer tokens in a step, some that run would get none.
        self._sequences = min(sequences, step_tokens - 1)
        self._waiting: deque[Live] = deque()
        self._answering: list[tuple[int, int, Live]] = []
        self._unfinished: tuple[Live, int] | None = None
        self._chunks: list[tuple[Live, int, int]] = []
        self._ticks = 0
        self._number = 0
        self._began_s = 0.0
        self._step_s = 0.0
        self._leap = 1

    def submit(self, live: Live, now: float) -> None:
        """Queue a request; it is looked at when the step under way ends."""
        self._waiting.append(live)
        if self.next_s == inf:
            self._begin(now)
        elif self._leap > 1:
            self._leap = min(self._leap, int((now - self._began_s) / self._step_s) + 1)
            self.next_s = self._began_s + self._leap * self._step_s

    def advance(self) -> tuple[list[Live], list[Live]]:
        """End the step: requests whose first token came, and requests that ended."""
        now = self.next_s
        first: list[Live] = []
        for live, done, new in self._chunks:
            if done + new < live.prompt_tokens:
                self._unfinished = live, done + new
                continue
            self.cache.prefilled(live.request_id)
            live.first_s = now
            first.append(live)
        self._ticks += self._leap
        ended: list[Live] = []
        while self._answering and self._answering[0][0] <= self._ticks:
            ended.append(heappop(self._answering)[2])
        for live in first:
            if live.job.output_tokens <= 1:
                ended.append(live)
            else:
                self._number += 1
                last = self._ticks + live.job.output_tokens - 1
                heappush(self._answering, (last, self._number, live))
        for live in ended:
            live.ended_s = now
            self.cache.release(live.request_id)
        self._begin(now)
        return first, ended

    def _begin(self, now: float) -> None:
        """Form the next step; `next_s` is its end."""
        answering = len(self._answering)
        budget = self._step_tokens - answering
        chunks: list[tuple[Live, int, int]] = []
        if self._unfinished is not None:
            live, done = self._unfinished
            self._unfinished = None
            new = min(live.prompt_tokens - done, budget)
            budget -= new
            chunks.append((live, done, new))
        while self._waiting and budget > 0 and answering + len(chunks) < self._sequences:
            live = self._waiting[0]
            cached = self.cache.admit(live.request_id, live.pieces)
            if cached is None:
                break
            self._waiting.popleft()
            live.cached = cached
            new = min(live.prompt_tokens - cached, budget)
            budget -= new
            chunks.append((live, cached, new))
        self._chunks = chunks
        if not chunks and not answering:
            self.next_s = inf
            return
        seconds = self._cost.fixed_s
        for _, done, new in chunks:
            seconds += self._cost.chunk_s(done, new)
        seconds += self._cost.decode_s * answering
        # While all only answer, nothing changes until one ends (or comes: `submit`).
        self._leap = 1 if chunks else self._answering[0][0] - self._ticks
        self._began_s, self._step_s = now, seconds
        self.next_s = now + self._leap * seconds
