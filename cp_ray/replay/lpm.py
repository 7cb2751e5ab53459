"""Policy `radix_lpm`: requests wait in a queue, and those that the cache holds most of go first.

SGLang's default with a radix cache (`schedule_policy.py`, read at 0.5.23): the waiting queue is
sorted by matched tokens before each batch. A request that matches almost nothing, but begins like
another such request in the queue, steps back until that one is cached. Blocks are never moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from itertools import islice

from cp_ray.replay.policies import AsTheyCame, Held
from cp_ray.replay.trace import TraceRequest

QUEUE = 128
"""Requests it sorts: above this SGLang serves in order of arrival. The queue is kept full, which
is the best case for this policy."""
THRESHOLD_TOKENS = 32
"""SGLang's: at most so many cached is a cold request; at least so many alike step back."""


class RadixLpm(AsTheyCame):
    """Sees QUEUE requests ahead whatever the number in flight."""

    def take(
        self, waiting: deque[TraceRequest], count: int, held: Held, /
    ) -> Sequence[TraceRequest]:
        """The `count` best of the queue; ties by arrival."""
        queue = list(islice(waiting, QUEUE))
        cold: set[Hashable] = set()
        ranked: list[tuple[bool, int, int]] = []
        for place, request in enumerate(queue):
            matched = held(request)
            back = False
            if matched <= THRESHOLD_TOKENS:
                start = _start(request)
                back = start in cold
                cold.add(start)
            ranked.append((back, -matched, place))
        chosen = {place for _, _, place in sorted(ranked)[:count]}
        for _ in queue:
            waiting.popleft()
        waiting.extendleft(
            queue[place] for place in reversed(range(len(queue))) if place not in chosen
        )
        return [queue[place] for _, _, place in sorted(ranked)[:count]]


def _start(request: TraceRequest) -> Hashable:
    """The leading blocks that make THRESHOLD_TOKENS; a request with fewer is like no other."""
    if request.history is not None:
        return request.request_id
    tokens = 0
    for number, length in enumerate(request.block_tokens, 1):
        tokens += length
        if tokens >= THRESHOLD_TOKENS:
            return request.context[:number]
    return request.request_id
