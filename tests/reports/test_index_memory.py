"""User report: the index of a router grows with every prompt it ever saw (field.md, case 4).

production-stack #687, dynamo #10774 and #4429. Here at a hundredth of the size and less; at the
size of the report with `make chaos`.
"""

from __future__ import annotations

import gc
import tracemalloc

import psutil
import pytest

from cp_ray.core.index import REMEMBERED, ContextIndex
from cp_ray.core.types import (
    BlockId,
    Eviction,
    EvictionReport,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
    Step,
)

R = ReplicaId("r")
BOUND, BLOCKS = 800, 8


def ask(index: ContextIndex, name: str, context: tuple[str, ...]) -> Step:
    blocks = tuple(BlockId(block) for block in context)
    request = PlanRequest(RequestId(name), HeadId("h"), 5, blocks, (10,) * len(blocks), 3)
    (step,) = index.plan([request], 0.0)
    index.hear(Settled(request.request_id, step.reused_tokens, ok=True), 0.0)
    return step


def nodes(index: ContextIndex) -> int:
    return sum(1 for tree in index.memory.trees.values() for _ in tree.root.walk())


def unique(number: int) -> tuple[str, ...]:
    return tuple(f"{number}/{place}" for place in range(BLOCKS))


def test_unique_prompts_reach_a_plateau_and_a_hot_prefix_survives() -> None:
    index = ContextIndex(max_records=BOUND)
    index.set_replicas([ReplicaInfo(R, 1, 10**9)])
    hot = tuple(f"hot/{place}" for place in range(BLOCKS))
    used = []
    tracemalloc.start()
    try:
        for number in range(5 * BOUND):
            ask(index, f"u{number}", unique(number))
            if number % 50 == 0:
                ask(index, f"hot{number}", hot)
            if (number + 1) % BOUND == 0:
                gc.collect()
                used.append(tracemalloc.get_traced_memory()[0])
                assert len(index.memory.records) <= BOUND
                assert nodes(index) <= BOUND + 2, "one a record, the root, the hot one"
    finally:
        tracemalloc.stop()
    assert used[4] < 1.1 * used[3], [round(size / 1e6, 1) for size in used]
    assert ask(index, "last", hot).reused_tokens >= 10 * BLOCKS, "it was asked for all the while"
    index.check()


def test_when_the_engine_has_removed_all_nothing_but_the_bounded_orders_is_left() -> None:
    index = ContextIndex(max_records=BOUND)
    index.set_replicas([ReplicaInfo(R, 1, 10**9)])
    for number in range(2 * BOUND):
        ask(index, f"u{number}", unique(number))
    gone = tuple(Eviction(name, 0) for name in index.memory.records)
    index.apply(EvictionReport(R, 0, 0, gone))
    assert not index.memory.records
    assert nodes(index) <= REMEMBERED
    assert nodes(index) <= 1, "seen once each: none is worth remembering"
    index.check()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_two_hundred_thousand_prompts_of_64_blocks_take_the_room_of_half_of_them() -> None:
    """The report's own numbers, and half as many again; memory as the system counts it."""
    bound, blocks = 100_000, 64
    index = ContextIndex(max_records=bound)
    index.set_replicas([ReplicaInfo(R, 1, 10**12)])
    hot = tuple(f"hot/{place}" for place in range(blocks))
    process, used = psutil.Process(), []
    for number in range(3 * bound):
        ask(index, f"u{number}", tuple(f"{number}/{place}" for place in range(blocks)))
        if number % 1000 == 0:
            ask(index, f"hot{number}", hot)
        if (number + 1) % bound == 0:
            used.append(process.memory_info().rss / 1e6)
    assert len(index.memory.records) <= bound
    assert nodes(index) <= bound + 2
    # Records are full after the first third, accounts of loss after the second.
    assert used[2] - used[1] < 0.05 * used[1], [round(mb) for mb in used]
    assert ask(index, "last", hot).reused_tokens >= 10 * blocks, "it was asked for all the while"
    index.apply(EvictionReport(R, 0, 0, tuple(Eviction(name, 0) for name in index.memory.records)))
    assert not index.memory.records
    assert nodes(index) <= REMEMBERED
