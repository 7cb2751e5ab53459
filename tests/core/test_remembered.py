"""Evicted orders: which stay, in what bound, and that requests follow them."""

from __future__ import annotations

from cp_ray.core.path import best_path
from cp_ray.core.remembered import RememberedOrders
from cp_ray.core.search import exact_search
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import RequestId
from tests.paper.worked_examples import context, tokens

HOLDER = 1


def tree_of(limit: int, *contexts: tuple[int, ...]) -> tuple[ContextTree, RememberedOrders]:
    """Each context came from as many requests as it is named; all evicted again."""
    remembered = RememberedOrders(limit)
    tree = ContextTree(remembered)
    for number, blocks in enumerate(contexts):
        tree.insert(RequestId(str(number)), context(*blocks), HOLDER)
    for number in range(len(contexts)):
        tree.remove(RequestId(str(number)))
    return tree, remembered


def test_an_order_seen_twice_outlives_its_eviction() -> None:
    tree, remembered = tree_of(9, (1, 2, 3), (1, 2, 4))
    given = context(2, 1, 5)
    assert exact_search(tree.root, given, tokens(given)) == []
    found = exact_search(tree.root, given, tokens(given), remembered=True)
    assert [candidate.prefix for candidate in found] == [context(1, 2)]
    assert best_path(found, HOLDER, 0.01).prefix == context(1, 2)
    tree.check()
    remembered.check()


def test_an_order_seen_once_is_gone_with_its_eviction() -> None:
    tree, remembered = tree_of(9, (1, 2, 3))
    assert not tree.root.children
    assert len(remembered) == 0


def test_the_oldest_orders_go_first_past_the_limit() -> None:
    tree, remembered = tree_of(2, (1, 2), (1, 2), (3, 4), (3, 4), (5, 6), (5, 6))
    assert sorted(tree.root.children) == sorted(context(3, 5))
    assert len(remembered) == 2
    remembered.check()


def test_a_remembered_order_that_is_held_again_is_no_longer_counted() -> None:
    tree, remembered = tree_of(9, (1, 2), (1, 2))
    assert len(remembered) == 1
    tree.insert(RequestId("again"), context(1, 2, 3), HOLDER)
    assert len(remembered) == 0
    tree.check()
    tree.remove(RequestId("again"))
    assert len(remembered) == 1


def test_a_held_prefix_wins_over_a_familiar_one_of_the_same_size() -> None:
    tree, _ = tree_of(9, (1, 2), (1, 2))
    tree.insert(RequestId("held"), context(3, 4), HOLDER)
    given = context(1, 2, 3, 4)
    found = exact_search(tree.root, given, tokens(given), remembered=True)
    path = best_path(found, HOLDER, 0.01)
    assert path.prefix == context(3, 4)
    assert path.held_tokens == sum(tokens(context(3, 4)).values())


def test_a_tree_is_forgotten_whole() -> None:
    tree, remembered = tree_of(9, (1, 2), (1, 2), (3, 4), (3, 4))
    remembered.forget(tree.root)
    assert len(remembered) == 0
