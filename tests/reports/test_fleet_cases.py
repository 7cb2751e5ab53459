"""User-reported faults of routers (field.md section 5): 5, 7, 8, 9, 17 and 22, a kind each."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from cp_ray.core.hearing import Hearing
from cp_ray.core.index import ContextIndex
from cp_ray.core.load import Work
from cp_ray.core.types import (
    BlockId,
    Dump,
    EvictionReport,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
    Step,
)
from cp_ray.index_actor.serve_live_set import LiveSet

ANSWER_S = 1.0
"""From the first token to the last."""


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


def test_case_5_whatever_health_checks_bring_the_load_stays_and_new_requests_even_it_out() -> None:
    """Ticks, heartbeats, dumps, silence, a new epoch, the live set told again, in any order."""
    for seed in range(30):
        chance = random.Random(seed)
        index = ContextIndex()
        hearing = Hearing(index)
        a, b = names(2)
        live(index, [a, b])
        for number in range(10):
            index.load.ledger.reserve(RequestId(f"old{number}"), a, Work(0, 1000, 0.1), 0.0)
            if number % 3 == 0:
                index.hear(FirstToken(RequestId(f"old{number}")), 0.0)
        now, seq, epoch = 0.0, 0, 0
        for _ in range(chance.randrange(1, 12)):
            now += chance.choice([0.1, 1.0, 15.0])
            kind = chance.randrange(6)
            if kind == 0:
                live(index, chance.sample([a, b], 2))
            elif kind == 1:
                hearing.reported(chance.choice([a, b]), now)
            elif kind == 2:
                hearing.tick(now)
            elif kind == 3:
                epoch, seq = epoch + chance.randrange(2), seq + chance.randrange(3)
                index.apply(EvictionReport(a, epoch, seq, ()))
            elif kind == 4:
                index.apply(Dump(a, epoch, seq, {}))
            else:
                index.dump_requests(now)
            assert index.load.ledger.running(a) == 10
            index.check()
        for name in (a, b):
            hearing.reported(name, now)
        hearing.tick(now)
        sent = Counter(one(index, ask(f"n{n}", f"b{n}"), now).replica for n in range(20))
        assert abs(10 + sent[a] - sent[b]) <= 4, "ten had 1000 tokens each, of which some are done"
        assert index.load.ledger.running(a) == 10 + sent[a]


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


def test_case_7_flaps_and_ends_in_any_order_leave_the_count_of_what_is_under_way() -> None:
    """The same name leaves and comes back at any moment; ends come late, twice, or never."""
    for seed in range(60):
        chance = random.Random(seed)
        index = ContextIndex()
        replicas = names(2)
        there = set(replicas)
        live(index, replicas)
        under_way: dict[RequestId, ReplicaId] = {}
        steps: list[Step] = []
        for tick in range(60):
            flips = chance.random() < 0.2
            if flips:
                there ^= {chance.choice(replicas)}
                live(index, sorted(there))
                under_way = {name: at for name, at in under_way.items() if at in there}
            elif chance.random() < 0.6 or not steps:
                step = one(index, ask(f"q{tick}", f"b{chance.randrange(5)}"), float(tick))
                steps.append(step)
                if step.replica is not None:
                    under_way[step.request_id] = step.replica
            else:
                ended = chance.choice(steps)  # perhaps for the second time, or of a life before
                finish(index, ended, float(tick))
                under_way.pop(ended.request_id, None)
            counted = Counter(under_way.values())
            assert all(index.load.ledger.running(name) == counted[name] for name in replicas)
            index.check()


@pytest.mark.parametrize("prefilled", [False, True])
@pytest.mark.parametrize("hot", range(8))
@pytest.mark.parametrize("rate", [0.9, 56.0])
def test_case_8_one_hot_replica_leaves_the_affinity_of_the_others(
    hot: int, prefilled: bool, rate: float
) -> None:
    """Whichever it is, with prompts or with answers; one request at a time, or 56 in the fleet."""
    index = ContextIndex()
    replicas = names(8)
    live(index, replicas)
    home = {}
    for group in range(8):
        step = served(index, ask(f"first{group}", f"g{group}", f"h{group}"), group * 10.0)
        home[group] = step.replica
    assert len(set(home.values())) == 8
    for number in range(200):
        name = RequestId(f"hot{number}")
        index.load.ledger.reserve(name, replicas[hot], Work(0, 1000, 0.1), 80.0)
        if prefilled:
            index.load.ledger.prefill_done(name, 80.0)
    others = [group for group in home if home[group] != replicas[hot]]
    kept, due = 0, list[tuple[float, bool, Step]]()
    for number in range(280):
        group, now = others[number % 7], 81.0 + number / rate
        for moment, ends, step in sorted(due, key=lambda event: event[0]):
            if moment <= now:
                end = Settled(step.request_id, step.reused_tokens, ok=True)
                index.hear(end if ends else FirstToken(step.request_id), moment)
        due = [event for event in due if event[0] > now]
        step = one(index, ask(f"q{number}", f"g{group}", f"h{group}"), now)
        kept += step.replica == home[group]
        first = now + 0.01 + (2020 - step.reused_tokens) / 10_000
        due += [(first, False, step), (first + ANSWER_S, True, step)]
    assert kept >= 0.95 * 280


@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize(("factor", "most"), [(2, 0.22), (4, 0.15), (8, 0.09)])
def test_case_9_a_slow_replica_with_an_empty_tree_gets_less_and_less(
    slow: int, factor: int, most: float
) -> None:
    """Time is simulated: each replica prefills in order, one of them so many times slower."""
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
        seconds = 0.1 * (factor if step.replica == replicas[slow] else 1)
        free[step.replica] = max(free[step.replica], now) + seconds
        due.append((free[step.replica], step))
        sent.append(step.replica)
    assert sent[200:].count(replicas[slow]) / 200 < most, "a fair share would be 0.25"
    quick = replicas[slow - 1]
    known = index.load.times.slowness(replicas[slow]) / index.load.times.slowness(quick)
    assert known > min(factor, 4) / 2


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
        live(index, names(count))
        for step in index.plan([ask(f"q{tick}", f"b{chance.randrange(40)}", "c")], now):
            assert step.replica in names(count)
            running.append(step)
        if len(running) > 30:
            finish(index, running.pop(chance.randrange(30)), now)
        if tick % 100 == 0:
            index.check()
    for step in running:
        finish(index, step, 10.0)
    index.check()
    assert index.counters()["reserved"] == 0


def test_case_22_the_live_set_is_heard_of_once_for_each_change() -> None:
    """However often Serve says what is known, in whatever order: no replica is joined twice."""
    heard: list[list[ReplicaInfo]] = []
    live_set = LiveSet("app", "Engine", heard.append)
    facts = {"page_size": 16, "capacity_tokens": 1_000_000}
    for count in (4, 8, 2):
        for repeat in range(50):
            ids = names(count)
            random.Random(repeat).shuffle(ids)
            live_set._tell(dict.fromkeys(ids, facts))
    assert [len(infos) for infos in heard] == [4, 8, 2]
    live_set._tell({**dict.fromkeys(names(2), facts), "starting": {}})
    assert len(heard) == 3, "one without facts is no engine yet"
