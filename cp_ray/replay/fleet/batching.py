"""Model `batching`: continuous batching with chunked prefill; prefills and answers share steps.

As vLLM's scheduler: in each step the running requests come first, in order of admission (one token
for each that answers, a chunk for each that is still prefilled), then waiting ones are admitted
while tokens of the step's budget, sequences and cache pages are left. Everybody in a step waits for
its end. Left out: preemption, and pages of output tokens (`core/prefix_cache` has none).
`tests/fleet/test_batching_against_vllm.py` runs vLLM's own Scheduler beside it.
"""

from __future__ import annotations

from collections import deque
from math import inf

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.replay.fleet.clock import StepCost
from cp_ray.replay.fleet.job import Live

STEP_TOKENS = 8192
"""vLLM's max_num_batched_tokens for online serving on large GPUs."""
SEQUENCES = 256


class _Sequence:
    """One running request. done: prompt tokens in the cache. left: output tokens to come."""

    __slots__ = ("done", "left", "live")

    def __init__(self, live: Live, done: int) -> None:
        self.live = live
        self.done = done
        self.left = live.job.output_tokens


class BatchingReplica:
    """One replica. `next_s`: when it next has something to tell; `advance` then returns it.

    Steps in which all only answer are alike until one ends or a request comes: they are taken at
    once (`_leap` of them).
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
        self._sequences = sequences
        self._waiting: deque[Live] = deque()
        self._running: list[_Sequence] = []
        self._chunks: list[tuple[_Sequence, int]] = []
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
        ended: list[Live] = []
        finished_prefill = set()
        for sequence, tokens in self._chunks:
            sequence.done += tokens
            live = sequence.live
            if sequence.done >= live.prompt_tokens:
                self.cache.prefilled(live.request_id)
                live.first_s = now
                first.append(live)
                sequence.left -= 1
                finished_prefill.add(sequence)
        going: list[_Sequence] = []
        for sequence in self._running:
            if sequence.done >= sequence.live.prompt_tokens:
                if sequence not in finished_prefill:
                    sequence.left -= self._leap
                if sequence.left <= 0:
                    sequence.live.ended_s = now
                    self.cache.release(sequence.live.request_id)
                    ended.append(sequence.live)
                    continue
            going.append(sequence)
        self._running = going
        self._begin(now)
        return first, ended

    def _begin(self, now: float) -> None:
        """Form the next step; `next_s` is its end."""
        budget = self._step_tokens
        answering = 0
        seconds = self._cost.fixed_s
        chunks = self._chunks = []
        for sequence in self._running:
            if budget <= 0:
                break
            left = sequence.live.prompt_tokens - sequence.done
            if left <= 0:
                answering += 1
                budget -= 1
            else:
                new = min(left, budget)
                budget -= new
                chunks.append((sequence, new))
        while self._waiting and budget > 0 and len(self._running) < self._sequences:
            live = self._waiting[0]
            cached = self.cache.admit(live.request_id, live.pieces)
            if cached is None:
                break
            self._waiting.popleft()
            live.cached = cached
            sequence = _Sequence(live, cached)
            self._running.append(sequence)
            new = min(live.prompt_tokens - cached, budget)
            budget -= new
            chunks.append((sequence, new))
        if not self._running:
            self.next_s = inf
            return
        for sequence, new in chunks:
            seconds += self._cost.chunk_s(sequence.done, new)
        seconds += self._cost.decode_s * answering
        # While all only answer, nothing changes until one ends (or comes: `submit`).
        self._leap = 1 if chunks else min(sequence.left for sequence in self._running)
        self._began_s, self._step_s = now, seconds
        self.next_s = now + self._leap * seconds
