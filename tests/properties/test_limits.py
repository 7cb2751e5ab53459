"""Whatever is planned, online or offline, no block moves further than the operator allows."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cp_ray.core.index import ContextIndex
from cp_ray.core.limits import Limits, limited_search, lowest_missing
from cp_ray.core.search import exact_search
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import (
    BlockId,
    Context,
    Eviction,
    EvictionReport,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
)
from cp_ray.errors import ConfigError
from cp_ray.replay.policies import Offline
from cp_ray.replay.trace import TraceRequest

BLOCKS = [BlockId(f"b{number}") for number in range(8)]
limits_strategy = st.builds(
    Limits, st.integers(0, 3), st.one_of(st.none(), st.integers(min_value=0, max_value=4))
)
contexts = st.lists(st.sampled_from(BLOCKS), unique=True, max_size=7).map(tuple)


def obeys(ranked: Context, planned: Context, limits: Limits) -> bool:
    """The definition, literally."""
    if planned[: limits.keep_top] != ranked[: limits.keep_top]:
        return False
    if limits.max_displacement is None:
        return True
    return all(
        abs(ranked.index(block) - place) <= limits.max_displacement
        for place, block in enumerate(planned)
    )


@settings(max_examples=60, deadline=None)
@given(
    limits=limits_strategy,
    traffic=st.lists(st.tuples(contexts, st.integers(0, 2)), max_size=25),
)
def test_an_online_plan_obeys_the_limits(
    limits: Limits, traffic: list[tuple[Context, int]]
) -> None:
    index = ContextIndex(limits=limits)
    index.build([tuple(BLOCKS[:5]), tuple(reversed(BLOCKS))])
    index.set_replicas([ReplicaInfo(ReplicaId(f"r{n}"), 16, 1000) for n in range(2)])
    reports = dict.fromkeys((ReplicaId("r0"), ReplicaId("r1")), 0)
    for number, (context, evict) in enumerate(traffic):
        name = RequestId(str(number))
        request = PlanRequest(name, HeadId("h"), 20, context, (30,) * len(context), 5)
        (step,) = index.plan([request], float(number))
        assert sorted(step.context) == sorted(context)
        assert obeys(context, step.context, limits), (limits, context, step.context)
        assert step.replica is not None
        if evict:
            gone = (Eviction(name, 30 * evict - 30),)
            index.apply(EvictionReport(step.replica, 0, reports[step.replica], gone))
            reports[step.replica] += 1
    index.check()


@settings(max_examples=60, deadline=None)
@given(limits=limits_strategy, many=st.lists(contexts, min_size=1, max_size=12))
def test_an_offline_plan_obeys_the_limits(limits: Limits, many: list[Context]) -> None:
    requests = [
        TraceRequest(RequestId(str(number)), "c", context, (30,) * len(context), 5)
        for number, context in enumerate(many)
    ]
    arranged = Offline(10, limits).arrange(requests)
    assert sorted(one.request_id for one in arranged) == sorted(r.request_id for r in requests)
    for request in arranged:
        ranked = many[int(request.request_id)]
        assert sorted(request.context) == sorted(ranked)
        assert obeys(ranked, request.context, limits)


@given(limits=limits_strategy, size=st.integers(0, 6))
@settings(max_examples=40, deadline=None)
def test_exactly_the_orders_that_obey_are_allowed(limits: Limits, size: int) -> None:
    ranked = tuple(BLOCKS[:size])
    for wanted in permutations(ranked):
        held = limits.hold(ranked, wanted)
        assert obeys(ranked, held, limits)
        assert (held == wanted) == obeys(ranked, wanted, limits)


@settings(max_examples=60, deadline=None)
@given(stored=st.lists(contexts, max_size=20), context=contexts)
def test_wide_limits_find_what_no_limits_find(stored: list[Context], context: Context) -> None:
    tree = ContextTree()
    for number, one in enumerate(stored):
        tree.insert(RequestId(str(number)), one, 1)
    tokens = dict.fromkeys(context, 10)
    wide = Limits(max_displacement=len(context))
    free = exact_search(tree.root, context, tokens)
    limited = limited_search(tree.root, context, tokens, wide)
    assert max((one.tokens for one in limited), default=0) == max(
        (one.tokens for one in free), default=0
    )


def test_a_held_prefix_is_followed_as_far_as_the_limit_lets_it() -> None:
    tree = ContextTree()
    tree.insert(RequestId("q"), (BLOCKS[2], BLOCKS[0], BLOCKS[1]), 1)
    context = tuple(BLOCKS[:4])
    tokens = dict.fromkeys(context, 10)

    def best(limits: Limits) -> int:
        found = limited_search(tree.root, context, tokens, limits)
        return max((one.tokens for one in found), default=0)

    assert best(Limits()) == 30
    assert best(Limits(max_displacement=2)) == 30
    assert best(Limits(max_displacement=1)) == 0, "rank 2 may not stand first"
    assert best(Limits(keep_top=1)) == 0


def test_lowest_missing_is_the_first_gap() -> None:
    assert [lowest_missing(placed) for placed in (0, 0b1, 0b10, 0b1011, 0b111)] == [0, 1, 0, 2, 3]


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep_top"):
        Limits(keep_top=-1)
