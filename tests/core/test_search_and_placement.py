"""Bounds of the search, ties of the placement, and the price of prefill."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from cp_ray.core.clustering import pairwise_distances
from cp_ray.core.distance import distance
from cp_ray.core.placement import Option, Utilisation, choose
from cp_ray.core.search import NODE_BUDGET, exact_search
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import BlockId, ReplicaId, RequestId
from tests.paper.worked_examples import A, B, C, D, context, tokens


def test_the_search_looks_at_no_more_edges_than_its_bound() -> None:
    """Every order of 4 of 12 blocks is stored, and the request has all 12: 11,880 paths match."""
    tree = ContextTree()
    blocks = [BlockId(str(number)) for number in range(12)]
    for count, order in enumerate(permutations(blocks, 4)):
        tree.insert(RequestId(str(count)), order, 1)
    given = tuple(blocks)
    looked = Counted(tokens(given))
    found = exact_search(tree.root, given, looked)
    assert NODE_BUDGET <= looked.reads < NODE_BUDGET + len(given)
    assert max(one.length for one in found) == 4, "busy branches first: an end is reached"


class Counted(dict[BlockId, int]):
    """Counts the edges looked at, each of one block here."""

    reads = 0

    def get(self, block: BlockId, default: Any = None) -> Any:
        self.reads += 1
        return super().get(block, default)


def test_the_heavier_prefix_wins_over_the_longer_one() -> None:
    tree = ContextTree()
    tree.insert(RequestId("long"), context(1, 2, 3), 1)
    tree.insert(RequestId("heavy"), context(4), 1)
    given = context(1, 2, 3, 4)
    weights = dict(zip(given, (10, 10, 10, 100), strict=True))
    best = max(exact_search(tree.root, given, weights), key=lambda found: found.tokens)
    assert best.prefix == context(4)


def option(name: str, wait: int, missing: int, running: int = 0, assigned: int = 0) -> Option:
    return Option(ReplicaId(name), wait, missing, running, assigned)


def test_ties_go_to_fewer_running_then_fewer_assigned_then_name() -> None:
    assert choose([option("a", 0, 9, 2), option("b", 0, 9, 1)], 1.0).replica == "b"
    assert choose([option("a", 0, 9, 1, 5), option("b", 0, 9, 1, 4)], 1.0).replica == "b"
    assert choose([option("b", 0, 9), option("a", 0, 9)], 1.0).replica == "a"


def test_congestion_makes_waiting_for_the_holder_worth_it() -> None:
    holder, idle = option("holder", 1000, 100), option("idle", 0, 1000)
    assert choose([holder, idle], 1.0).replica == "idle"
    assert choose([holder, idle], 5.0).replica == "holder"


def test_the_price_follows_utilisation_and_is_bounded() -> None:
    use = Utilisation()
    assert use.price(0.0) == 1.0
    for second in range(200):
        use.observe(0.5, float(second))
    assert 1.9 < use.price(0.0) <= 2.0
    for second in range(200, 600):
        use.observe(1.0, float(second))
    assert 9.9 < use.price(0.0) <= 10.0001
    use.observe(0.0, 599.0)
    assert use.price(0.0) > 9.9, "no time passed, nothing forgotten"


def test_pairwise_distances_are_eq_1_of_every_pair() -> None:
    four = [A, B, C, D]
    pairs = [distance(four[i], four[j]) for i in range(4) for j in range(i + 1, 4)]
    assert [round(d, 9) for d in pairwise_distances(four)] == [round(d, 9) for d in pairs]
