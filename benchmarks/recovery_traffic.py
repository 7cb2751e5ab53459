"""Traffic for the recovery benchmark, and what engines truly hold of it."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

from cp_ray.core.types import (
    BlockId,
    Context,
    HeadId,
    PlanRequest,
    RequestId,
    Step,
)

HEAD, BLOCK, TAIL, K = 64, 200, 30, 15
"""Tokens of a head, a block and a question; blocks of a context."""


class Truth:
    """What the engines hold, as digests of replica and prefix."""

    def __init__(self) -> None:
        self.held: dict[RequestId, int] = {}
        self.steps: dict[RequestId, Step] = {}
        self._prefixes: set[int] = set()

    def took(self, step: Step) -> None:
        self.steps[step.request_id] = step
        self.held[step.request_id] = HEAD + BLOCK * len(step.context) + TAIL

    def seal(self) -> None:
        """Compute what can be found from now on."""
        for request, tokens in self.held.items():
            step = self.steps[request]
            digests = list(_digests(step.replica, step.context))
            self._prefixes.update(digests[: 1 + max(0, tokens - HEAD) // BLOCK])

    def wrong(self, steps: list[Step]) -> int:
        """How many say they reuse what their replica neither holds nor was just sent."""
        sent: set[int] = set()
        wrong = 0
        for step in steps:
            digests = list(_digests(step.replica, step.context))
            last = digests[max(0, step.reused_tokens - HEAD) // BLOCK]
            known = last in self._prefixes or last in sent
            wrong += step.reused_tokens > 0 and not known
            sent.update(digests)
        return wrong


def _digests(replica: str | None, context: Context) -> Any:
    return accumulate(context, lambda above, block: hash((above, block)), initial=hash(replica))


def request_of(name: str, context: Context) -> PlanRequest:
    lengths = (BLOCK,) * len(context)
    return PlanRequest(RequestId(name), HeadId("h" * 32), HEAD, context, lengths, TAIL)


class Traffic:
    """Contexts that resemble earlier ones, as retrieval makes them."""

    def __init__(self, seed: int, records: int) -> None:
        self._rng = random.Random(seed)
        self._seen: list[Context] = []
        self._blocks = max(200, records // 5)

    def context(self) -> Context:
        rng = self._rng
        if self._seen and rng.random() < 0.7:
            kept = rng.choice(self._seen)[: rng.randint(K // 3, K - 1)]
        else:
            kept = ()
        fresh = [f"{int(self._blocks * rng.random() ** 2):032x}" for _ in range(K - len(kept))]
        context = tuple(dict.fromkeys((*kept, *map(BlockId, fresh))))
        self._seen.append(context)
        return context
