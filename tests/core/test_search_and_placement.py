"""Bounds of the search, ties of the placement, and the price of prefill."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

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


USUAL_S = 1.0


def option(
    name: str, wait: float, own: float, waiting: int = 0, assigned: int = 0, new: int = 0
) -> Option:
    return Option(ReplicaId(name), wait, own, 0, assigned, waiting=waiting, new=new)


def test_ties_go_to_fewer_waiting_then_fewer_assigned_then_name() -> None:
    assert choose([option("a", 0, 9, 2), option("b", 0, 9, 1)], 1.0, USUAL_S).replica == "b"
    assert choose([option("a", 0, 9, 1, 5), option("b", 0, 9, 1, 4)], 1.0, USUAL_S).replica == "b"
    assert choose([option("b", 0, 9), option("a", 0, 9)], 1.0, USUAL_S).replica == "a"


def test_a_replica_that_seems_a_little_faster_does_not_get_all_that_is_new() -> None:
    slower = option("b", 0, 1.0, 0, 3)
    assert choose([option("a", 0, 0.995, 0, 9), slower], 1.0, USUAL_S).replica == "b"


def test_waits_are_no_less_certain_for_a_long_prompt() -> None:
    """Of 16 s half a second is 3%, but a wait of half a second is no wait of none."""
    idle, busy = option("idle", 0.0, 16.0, assigned=9), option("busy", 0.5, 16.0, assigned=3)
    assert choose([idle, busy], 1.0, USUAL_S).replica == "idle"
    assert choose([idle, busy], 1.0, 16.0).replica == "busy", "where all are as long, it is near"
    idle.wait_s, busy.wait_s = 10.0, 10.5
    assert choose([idle, busy], 1.0, USUAL_S).replica == "busy", "5% of a long wait"


def test_who_lacks_less_of_a_long_prompt_is_known_and_who_is_faster_is_not() -> None:
    holder = option("holder", 0.0, 15.3, assigned=9, new=76_500)
    other = option("other", 0.0, 16.0, assigned=3, new=80_000)
    assert choose([holder, other], 1.0, USUAL_S).replica == "holder"
    other.new = holder.new
    assert choose([holder, other], 1.0, USUAL_S).replica == "other", "a speed of 5% less"


prices = st.floats(PRICE_FLOOR, PRICE_CEILING)
seconds = st.floats(0, 60)
offers = st.lists(
    st.builds(
        option,
        st.text("abcdef", min_size=1, max_size=3),
        seconds,
        seconds,
        st.integers(0, 5),
        st.integers(0, 5),
        st.integers(0, 100_000),
    ),
    min_size=1,
    max_size=8,
)


@given(offers, prices, st.floats(0, 5))
def test_what_is_chosen_is_near_the_cheapest_and_its_wait_near_the_cheapest_ones(
    options: list[Option], price: float, usual_s: float
) -> None:
    chosen = choose(options, price, usual_s)
    cheapest = min(options, key=lambda one: one.cost_s(price))
    assert chosen.cost_s(price) <= cheapest.cost_s(price) * 1.05 + 1e-9
    ahead = chosen.cost_s(price) - chosen.own_s * price
    least = cheapest.cost_s(price) - cheapest.own_s * price
    assert ahead <= least + 0.05 * (least + usual_s * price) + 1e-9
    assert chosen is cheapest or chosen.before(cheapest)


def test_congestion_makes_waiting_for_the_holder_worth_it() -> None:
    holder, idle = option("holder", 1.0, 0.1), option("idle", 0, 1.0)
    assert choose([holder, idle], 1.0, USUAL_S).replica == "idle"
    assert choose([holder, idle], 5.0, USUAL_S).replica == "holder"


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
    assert choose(near, 1.0, USUAL_S).replica == "a"
    near[0].beside_s = 0.2
    assert choose(near, 1.0, USUAL_S).replica == "b"


def test_a_long_prompt_keeps_away_from_where_many_wait_and_a_short_one_does_not() -> None:
    many, few = option("many", 5.0, 10.0), option("few", 9.0, 10.0)
    many.waiting, few.waiting = 30, 2
    assert choose([many, few], 1.0, USUAL_S).replica == "few"
    many.own_s = few.own_s = 0.1
    assert choose([many, few], 1.0, USUAL_S).replica == "many"


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
    for share in (0.1, 0.9, 0.99, 1.01, 3.0):
        holder, idle = (
            option("holder", share * PRICE_CEILING, 0.0),
            option("idle", 0.0, 1.0, assigned=1),
        )
        chosen = choose([holder, idle], PRICE_CEILING, USUAL_S)
        assert chosen is (holder if share < 1 else idle)


def test_pairwise_distances_are_eq_1_of_every_pair() -> None:
    four = [A, B, C, D]
    pairs = [distance(four[i], four[j]) for i in range(4) for j in range(i + 1, 4)]
    assert [round(d, 9) for d in pairwise_distances(four)] == [round(d, 9) for d in pairs]
