"""User-reported faults of routers (field.md section 5): 5, 7, 8, 9, 17 and 22, a kind each."""

from __future__ import annotations

import random
from collections import Counter

from cp_ray.core.index import ContextIndex
from cp_ray.core.load import Work
from cp_ray.core.types import (
    BlockId,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
    Step,
)


def names(count: int) -> list[ReplicaId]:
    return [ReplicaId(f"r{at}") for at in range(count)]


def live(index: ContextIndex, replicas: list[ReplicaId]) -> None:
    index.set_replicas([ReplicaInfo(name, 16, 1_000_000) for name in replicas])


def ask(name: str, *blocks: str, size: int = 1000) -> PlanRequest:
    context = tuple(BlockId(block) for block in blocks)
    return PlanRequest(RequestId(name), HeadId("h"), 0, context, (size,) * len(context), 20)


def one(index: ContextIndex, request: PlanRequest, now: float) -> Step:
    (step,) = index.plan([request], now)
    return step


def served(index: ContextIndex, request: PlanRequest, now: float) -> Step:
    """Planned, and prefilled by an idle engine at 10,000 tokens a second."""
    step = one(index, request, now)
    total = request.head_tokens + sum(request.block_tokens) + request.tail_tokens
    finish(index, step, now + 0.01 + (total - step.reused_tokens) / 10_000)
    return step


def finish(index: ContextIndex, step: Step, now: float) -> None:
    index.hear(FirstToken(step.request_id), now)
    index.hear(Settled(step.request_id, step.reused_tokens, ok=True), now)


def test_case_5_a_health_check_leaves_the_load_as_it_is() -> None:
    index = ContextIndex()
    a, b = names(2)
    live(index, [a, b])
    for number in range(10):
        index.load.ledger.reserve(RequestId(f"old{number}"), a, Work(0, 1000, 0.1), 0.0)
    live(index, [a, b])  # what a health tick brings
    assert index.load.ledger.running(a) == 10
    steps = [one(index, ask(f"new{n}", f"b{n}"), 0.0) for n in range(20)]
    assert all(step.replica == b for step in steps[:9])
    sent = Counter(step.replica for step in steps)
    assert abs(10 + sent[a] - sent[b]) <= 1
    index.check()


def test_case_7_a_flapping_replica_never_counts_below_zero() -> None:
    index = ContextIndex()
    (a,) = names(1)
    live(index, [a])
    step = one(index, ask("q", "x"), 0.0)
    live(index, [])
    live(index, [a])
    finish(index, step, 1.0)
    finish(index, step, 1.0)
    assert index.load.ledger.running(a) == 0
    assert index.load.ledger.wait_s(a, 1.0) == 0.0
    index.check()


def test_case_8_one_hot_replica_leaves_the_affinity_of_the_others() -> None:
    index = ContextIndex()
    replicas = names(8)
    live(index, replicas)
    home = {}
    for group in range(8):
        step = served(index, ask(f"first{group}", f"g{group}", f"h{group}"), group * 10.0)
        home[group] = step.replica
    assert len(set(home.values())) == 8
    for number in range(200):
        index.load.ledger.reserve(RequestId(f"hot{number}"), replicas[0], Work(0, 1000, 0.1), 80.0)
    others = [group for group in home if home[group] != replicas[0]]
    kept = total = 0
    for number in range(140):
        group = others[number % 7]
        step = served(index, ask(f"q{number}", f"g{group}", f"h{group}"), 81.0 + number)
        kept += step.replica == home[group]
        total += 1
    assert kept >= 0.95 * total


def test_case_9_a_slow_replica_with_an_empty_tree_gets_less_and_less() -> None:
    """Time is simulated: each replica prefills in order, the first at a quarter of the speed."""
    index = ContextIndex()
    replicas = names(4)
    live(index, replicas)
    chance = random.Random(9)
    free = dict.fromkeys(replicas, 0.0)
    due: list[tuple[float, Step]] = []
    sent: list[ReplicaId] = []
    now = 0.0
    for number in range(400):
        now += chance.expovariate(20.0)
        for moment, step in sorted(due, key=lambda pair: pair[0]):
            if moment <= now:
                finish(index, step, moment)
        due = [pair for pair in due if pair[0] > now]
        step = one(index, ask(f"q{number}", f"only{number}"), now)
        assert step.replica is not None
        seconds = 0.1 * (4 if step.replica == replicas[0] else 1)
        free[step.replica] = max(free[step.replica], now) + seconds
        due.append((free[step.replica], step))
        sent.append(step.replica)
    assert sent[200:].count(replicas[0]) / 200 < 0.15, "a fair share would be 0.25"
    assert index.load.times.slowness(replicas[0]) > 2 * index.load.times.slowness(replicas[1])


def test_case_17_two_routers_send_a_conversation_to_one_replica() -> None:
    """Both ask one index, and each tells only of its own requests."""
    index = ContextIndex()
    live(index, names(8))
    before: RequestId | None = None
    chosen = Counter[ReplicaId | None]()
    tokens = 0
    for turn in range(100):
        name = f"router{turn % 2}/turn{turn}"
        head = HeadId(f"after {before}")
        request = PlanRequest(
            RequestId(name), head, tokens, (BlockId(f"d{turn}"),), (500,), 20, True, before
        )
        step = served(index, request, float(turn))
        chosen[step.replica] += 1
        tokens += 520
        before = RequestId(name)
    assert chosen.most_common(1)[0][1] >= 95


def test_case_22_scaling_4_8_2_under_load_never_plans_a_replica_that_left() -> None:
    index = ContextIndex()
    chance = random.Random(22)
    running: list[Step] = []
    for tick in range(1000):
        now = tick / 100
        count = 4 if now < 3 else 8 if now < 6 else 2
        if tick % 50 == 0:
            live(index, names(count))
        for step in index.plan([ask(f"q{tick}", f"b{chance.randrange(40)}", "c")], now):
            assert step.replica in names(count) or step.replica in names(8)[:count]
            running.append(step)
        if len(running) > 30:
            finish(index, running.pop(chance.randrange(30)), now)
        if tick % 100 == 0:
            index.check()
    for step in running:
        finish(index, step, 10.0)
    index.check()
    assert index.counters()["reserved"] == 0
