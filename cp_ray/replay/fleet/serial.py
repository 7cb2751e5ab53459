"""Model `serial`: one prompt is prefilled at a time, in order of arrival, at a fixed rate.

The same as `workers.simulated_engine`, without its event loop: a request is admitted to the cache
when the one before it is prefilled and there is room; answers go on beside the prefills.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.replay.fleet.clock import SerialRates
from cp_ray.replay.fleet.job import Live


class SerialReplica:
    """One replica. `next_s`: when it next has something to tell; `advance` then returns it."""

    def __init__(self, cache: PrefixCache, rates: SerialRates) -> None:
        self.cache = cache
        self.next_s = inf
        self._rates = rates
        self._waiting: deque[Live] = deque()
        self._prefilling: Live | None = None
        self._prefill_ends_s = inf
        self._answering: list[tuple[float, int, Live]] = []
        self._number = 0

    def submit(self, live: Live, now: float) -> None:
        """Queue a request."""
        self._waiting.append(live)
        if self._prefilling is None:
            self._admit(now)

    def advance(self) -> tuple[list[Live], list[Live]]:
        """Go to `next_s`: requests whose first token came, and requests that ended."""
        now = self.next_s
        first: list[Live] = []
        ended: list[Live] = []
        if self._prefilling is not None and self._prefill_ends_s <= now:
            live, self._prefilling, self._prefill_ends_s = self._prefilling, None, inf
            self.cache.prefilled(live.request_id)
            live.first_s = now
            first.append(live)
            self._number += 1
            left = (live.job.output_tokens - 1) / self._rates.decode_tokens_per_s
            heappush(self._answering, (now + left, self._number, live))
        while self._answering and self._answering[0][0] <= now:
            _, _, live = heappop(self._answering)
            live.ended_s = now
            self.cache.release(live.request_id)
            ended.append(live)
        if self._prefilling is None:
            self._admit(now)
        self._aim()
        return first, ended

    def _admit(self, now: float) -> None:
        if self._waiting:
            live = self._waiting[0]
            cached = self.cache.admit(live.request_id, live.pieces)
            if cached is not None:
                self._waiting.popleft()
                live.cached = cached
                self._prefilling = live
                seconds = (live.prompt_tokens - cached) / self._rates.prefill_tokens_per_s
                self._prefill_ends_s = now + seconds
        self._aim()

    def _aim(self) -> None:
        answer = self._answering[0][0] if self._answering else inf
        self.next_s = min(self._prefill_ends_s, answer)
