"""A seeded life of an index, as one line per thing it said. `python FILE` prints it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from cp_ray.compiling import is_compiled
from cp_ray.core.index import ContextIndex
from cp_ray.core.limits import Limits
from cp_ray.core.types import (
    BlockId,
    Eviction,
    EvictionReport,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Routed,
    Settled,
)

REPLICAS = [ReplicaId(f"r{number}") for number in range(3)]


def life(seed: int, requests: int = 1500) -> Iterator[str]:
    """Windows, spills, failures, evictions in whole and in part, and a replica that leaves."""
    rng = random.Random(seed)
    limits = Limits(keep_top=seed % 3 == 2, max_displacement=4 if seed % 3 == 1 else None)
    index = ContextIndex(max_records=400, limits=limits)
    index.set_replicas([ReplicaInfo(replica, 16, 40_000) for replica in REPLICAS])
    sequence = dict.fromkeys(REPLICAS, 0)
    now, named = 0.0, 0
    while named < requests:
        window = []
        for _ in range(rng.choice((1, 1, 2, 9))):
            named += 1
            window.append(_request(rng, named))
        now += rng.random()
        for step in index.plan(window, now):
            yield f"{step}"
            if step.replica is None:
                continue
            if rng.random() < 0.1:
                index.hear(Routed(step.request_id, rng.choice(REPLICAS)), now)
            index.hear(FirstToken(step.request_id), now + rng.random())
            ok = rng.random() < 0.95
            index.hear(Settled(step.request_id, step.reused_tokens, ok=ok), now + 1.0)
        if rng.random() < 0.3 and index.records:
            name = rng.choice(list(index.records))
            replica = index.records[name].replica
            gone = (Eviction(name, rng.choice((0, 500, 1500))),)
            index.apply(EvictionReport(replica, 0, sequence[replica], gone))
            sequence[replica] += 1
    index.set_replicas([ReplicaInfo(replica, 16, 40_000) for replica in REPLICAS[:2]])
    index.check()
    yield f"{sorted(index.counters().items())}"
    yield f"{sorted(index.losses.sums().by_cause.items())}"


def _request(rng: random.Random, number: int) -> PlanRequest:
    topic = rng.randrange(12)
    ranks = [int(rng.expovariate(0.2)) for _ in range(rng.randrange(1, 14))]
    context = tuple(dict.fromkeys(BlockId(f"{topic}-{rank}") for rank in ranks))
    sizes = tuple(100 + 7 * len(block) for block in context)
    head = HeadId(f"head-{topic % 2}")
    fixed = rng.random() < 0.1
    return PlanRequest(RequestId(f"q{number}"), head, 30, context, sizes, 25, movable=not fixed)


if __name__ == "__main__":
    sys.stdout.write(f"{is_compiled()}\n")
    for line in life(int(sys.argv[1])):
        sys.stdout.write(f"{line}\n")
