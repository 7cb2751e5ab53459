"""Bounds of the search, ties of the placement, and the price of prefill."""

from __future__ import annotations

from itertools import permutations

from cp_ray.core.clustering import pairwise_distances
from cp_ray.core.distance import distance
from cp_ray.core.fleet_load import FleetLoad
from cp_ray.core.placement import (
    ANSWER_STEPS,
    BEHIND,
    PRICE_CEILING,
    PRICE_FLOOR,
    Congestion,
    Option,
    choose,
)
from cp_ray.core.search import NODE_BUDGET, exact_search
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import BlockId, ReplicaId, ReplicaInfo, RequestId
from tests.paper.worked_examples import A, B, C, D, context, tokens


def test_the_search_looks_at_no_more_edges_than_its_bound() -> None:
    """Every order of 4 of 12 blocks is stored, and the request has all 12: 11,880 paths match."""
    tree = ContextTree()
    blocks = [BlockId(str(number)) for number in range(12)]
    for count, order in enumerate(permutations(blocks, 4)):
        tree.insert(RequestId(str(count)), order, count)  # own holders: no edge is passed over
    given = tuple(blocks)
    found = exact_search(tree.root, given, tokens(given))
    assert NODE_BUDGET <= len(found) < NODE_BUDGET + len(given)
    assert max(one.length for one in found) == 4, "busy branches first: an end is reached"


def test_the_heavier_prefix_wins_over_the_longer_one() -> None:
    tree = ContextTree()
    tree.insert(RequestId("long"), context(1, 2, 3), 1)
    tree.insert(RequestId("heavy"), context(4), 1)
    given = context(1, 2, 3, 4)
    weights = dict(zip(given, (10, 10, 10, 100), strict=True))
    best = max(exact_search(tree.root, given, weights), key=lambda found: found.tokens)
    assert best.prefix == context(4)


def option(name: str, wait: float, own: float, waiting: int = 0, assigned: int = 0) -> Option:
    return Option(ReplicaId(name), wait, own, 0, assigned, waiting=waiting)


def test_ties_go_to_fewer_waiting_then_fewer_assigned_then_name() -> None:
    assert choose([option("a", 0, 9, 2), option("b", 0, 9, 1)], 1.0).replica == "b"
    assert choose([option("a", 0, 9, 1, 5), option("b", 0, 9, 1, 4)], 1.0).replica == "b"
    assert choose([option("b", 0, 9), option("a", 0, 9)], 1.0).replica == "a"


def test_a_replica_that_seems_a_little_faster_does_not_get_all_that_is_new() -> None:
    assert choose([option("a", 0, 0.995, 0, 9), option("b", 0, 1.0, 0, 3)], 1.0).replica == "b"


def test_congestion_makes_waiting_for_the_holder_worth_it() -> None:
    holder, idle = option("holder", 1.0, 0.1), option("idle", 0, 1.0)
    assert choose([holder, idle], 1.0).replica == "idle"
    assert choose([holder, idle], 5.0).replica == "holder"


def test_answers_that_run_there_count_a_few_of_their_steps() -> None:
    load = FleetLoad()
    infos = [ReplicaInfo(ReplicaId(name), 16, 100_000) for name in "ab"]
    for number in range(5):
        request = RequestId(f"r{number}")
        offer = load.options(infos[:1], [0], 1000, 0.0)[0]
        load.reserve(request, offer, 0, 1000, now=0.0, replicas=2)
        load.first_token(request, {info.replica: info for info in infos}, 1.0)
    load.times.per_answer_s = 0.002
    offers = load.options(infos, [900, 0], 1000, 2.0)
    assert [o.beside_s for o in offers] == load.beside_s(infos) == [5 * 0.002 * ANSWER_STEPS, 0.0]
    near = [option("a", 0, 1.0), option("b", 0, 1.1)]
    assert choose(near, 1.0).replica == "a"
    near[0].beside_s = 0.2
    assert choose(near, 1.0).replica == "b"


def test_a_long_prompt_keeps_away_from_where_many_wait_and_a_short_one_does_not() -> None:
    many, few = option("many", 5.0, 10.0), option("few", 9.0, 10.0)
    many.waiting, few.waiting = 30, 2
    assert choose([many, few], 1.0).replica == "few"
    many.own_s = few.own_s = 0.1
    assert choose([many, few], 1.0).replica == "many"


def test_offers_and_windows_know_how_many_wait() -> None:
    load = FleetLoad()
    infos = [ReplicaInfo(ReplicaId(name), 16, 100_000) for name in "ab"]
    for number in range(3):
        offer = load.options(infos[:1], [0], 1000, 0.0)[0]
        load.reserve(RequestId(f"r{number}"), offer, 0, 1000, now=0.0, replicas=2)
    load.first_token(RequestId("r0"), {info.replica: info for info in infos}, 0.1)
    assert [o.waiting for o in load.options(infos, [0, 0], 1000, 0.2)] == [2, 0]
    assert load.surcharge(infos) == [2 * BEHIND, 0.0]


def busy(seconds_of_work: float, replicas: int) -> Congestion:
    congestion = Congestion()
    for second in range(300):
        congestion.planned(seconds_of_work, replicas, float(second))
    return congestion


def test_work_costs_nobody_else_anything_while_a_replica_is_free() -> None:
    assert busy(3.9, 4).price(0.0) == PRICE_FLOOR


def test_the_price_follows_planned_work_and_the_shortest_wait_and_is_bounded() -> None:
    half = busy(2.0, 4)
    assert 0.45 < half.utilisation < 0.55
    assert 2.0 < half.price(2.0) < 2.2, "one usual prefill of wait, rho / (1 - rho) = 1"
    assert half.price(2.0) < half.price(4.0) < busy(3.2, 4).price(6.4)
    assert busy(8.0, 4).price(100.0) == PRICE_CEILING
    assert Congestion().price(5.0) == PRICE_FLOOR, "nothing known yet"


def test_no_request_waits_longer_for_a_holder_than_the_price_ceiling_times_its_prefill() -> None:
    """The starvation bound: replicas serve in order, so the wait at placement is all there is."""
    for wait in (1.0, 9.0, 9.9, 10.1, 30.0):
        chosen = choose([option("holder", wait, 0.0), option("idle", 0.0, 1.0)], PRICE_CEILING)
        assert chosen.wait_s <= PRICE_CEILING * 1.0 * 1.01


def test_pairwise_distances_are_eq_1_of_every_pair() -> None:
    four = [A, B, C, D]
    pairs = [distance(four[i], four[j]) for i in range(4) for j in range(i + 1, 4)]
    assert [round(d, 9) for d in pairwise_distances(four)] == [round(d, 9) for d in pairs]
