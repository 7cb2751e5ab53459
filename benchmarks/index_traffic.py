"""A fleet as the index hears of it: requests that run, and what the caches let go of.

The workload is that of `cp-ray bench index`. Engines are tables: as many requests leave a cache,
oldest first, as come into one, so that the index stays as full as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from cp_ray.core.types import (
    Eviction,
    Feedback,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    RequestId,
    Settled,
    Step,
)
from cp_ray.replay.index_bench import SIZE, contexts

HEAD, HEAD_TOKENS, TAIL_TOKENS = HeadId("bench"), 20, 40
PREFILLING, ANSWERING = 4, 24
"""Windows until the first token, and from there to the end: some 1,000 requests run."""


def requests(k: int, seed: int) -> Iterator[PlanRequest]:
    """Without end; names and blocks are strings of their own, as when they came by wire."""
    for number, context in enumerate(contexts(k, seed)):
        name = RequestId(f"{number:032x}")
        yield PlanRequest(name, HEAD, HEAD_TOKENS, context, (SIZE,) * k, TAIL_TOKENS)


class Fleet:
    """What became of the windows sent so far."""

    def __init__(self) -> None:
        self._windows: deque[Sequence[Step]] = deque()
        self._held: deque[tuple[ReplicaId, RequestId]] = deque()
        self._running = 0

    def sent(self, steps: Sequence[Step]) -> list[Feedback]:
        """One more window runs; what is heard of earlier ones meanwhile."""
        self._windows.append(steps)
        self._running += len(steps)
        heard: list[Feedback] = []
        if len(self._windows) > PREFILLING:
            heard += [FirstToken(step.request_id) for step in self._windows[-PREFILLING - 1]]
        if len(self._windows) > PREFILLING + ANSWERING:
            ended = self._windows.popleft()
            self._running -= len(ended)
            for step in ended:
                heard.append(Settled(step.request_id, step.reused_tokens, ok=True))
                if step.replica is not None:
                    self._held.append((step.replica, step.request_id))
        return heard

    def lost(self, most: int) -> dict[ReplicaId, list[Eviction]]:
        """What is stored beyond `most` leaves its cache, oldest first; one entry each."""
        lost: dict[ReplicaId, list[Eviction]] = {}
        while self._held and self._running + len(self._held) > most:
            replica, request = self._held.popleft()
            lost.setdefault(replica, []).append(Eviction(request, 0))
        return lost
