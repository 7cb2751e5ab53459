"""Paper figure 5 and 4.2: construction, search, insertion and traversal."""

from cp_ray.core.clustering import cluster
from cp_ray.core.offline import OfflineOrders
from cp_ray.core.search import greedy_search
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import RequestId
from tests.paper.worked_examples import C1, C2, C3, C6, C7, C8, context, show, tokens

ALPHA = 0.001


def figure_5() -> ContextTree:
    tree = ContextTree()
    for name, aligned in zip(("C1", "C2", "C3"), cluster([C1, C2, C3]).contexts, strict=True):
        tree.insert(RequestId(name), aligned, 1)
    return tree


def test_c1_and_c2_merge_first_then_c3() -> None:
    merges = cluster([C1, C2, C3], ALPHA).merges
    assert {show(content): f"{height:.4f}" for content, height in merges.items()} == {
        "{1, 2}": "0.3338",
        "{1}": "0.6672",
    }


def test_leaves_take_their_parents_prefix() -> None:
    assert [show(c) for c in cluster([C1, C2, C3]).contexts] == [
        "{1, 2, 3}",
        "{1, 2, 6}",
        "{1, 4, 0}",
    ]


def test_the_tree_is_the_figures_tree() -> None:
    tree = figure_5()
    tree.check()
    drawn = {show(node.context): list(node.search_path) for node in tree.root.walk()}
    assert drawn == {
        "{}": [],
        "{1}": [0],
        "{1, 2}": [0, 0],
        "{1, 2, 3}": [0, 0, 0],
        "{1, 2, 6}": [0, 0, 1],
        "{1, 4, 0}": [0, 1],
    }


def test_c6_is_found_at_c4_and_inserted_at_0_0_2() -> None:
    tree = figure_5()
    best = greedy_search(tree.root, C6, tokens(C6), ALPHA)[-1]
    assert (show(best.prefix), best.node.search_path) == ("{1, 2}", (0, 0))
    assert tree.insert(RequestId("C6"), context(1, 2, 4), 1).search_path == (0, 0, 2)
    tree.check()


def test_c8_follows_at_0_0_3_and_c7_starts_a_branch() -> None:
    tree = figure_5()
    tree.insert(RequestId("C6"), context(1, 2, 4), 1)
    best = greedy_search(tree.root, C8, tokens(C8), ALPHA)[-1]
    assert show(best.prefix) == "{1, 2}"
    assert tree.insert(RequestId("C8"), context(1, 2, 9), 1).search_path == (0, 0, 3)
    assert greedy_search(tree.root, C7, tokens(C7), ALPHA) == []
    assert tree.insert(RequestId("C7"), C7, 1).search_path == (1,)


def test_a_stored_path_leads_back_to_its_node() -> None:
    tree = figure_5()
    found = tree.traverse((0, 0, 1))
    assert found is not None
    assert show(found.context) == "{1, 2, 6}"
    assert tree.traverse((0, 7)) is None


def test_eviction_removes_the_leaf_and_prunes_empty_parents() -> None:
    tree = figure_5()
    tree.remove(RequestId("C3"))
    tree.check()
    assert "{1, 4, 0}" not in {show(node.context) for node in tree.root.walk()}
    tree.remove(RequestId("C1"))
    tree.remove(RequestId("C2"))
    tree.check()
    assert [node.context for node in tree.root.walk()] == [()]


def test_an_equal_context_shares_the_leaf_and_raises_its_frequency() -> None:
    tree = figure_5()
    again = tree.insert(RequestId("again"), context(1, 2, 3), 1)
    assert again is tree.node_of[RequestId("C1")]
    assert again.frequency == 2


def test_nodes_carry_the_distance_that_created_them() -> None:
    orders = OfflineOrders()
    orders.build([C1, C2, C3], ALPHA)
    heights = {show(n.context): round(n.merge_distance, 4) for n in orders.root.walk()}
    assert heights["{1, 2}"] == 0.3338
    assert heights["{1}"] == 0.6672
    assert heights["{1, 2, 3}"] == 0
