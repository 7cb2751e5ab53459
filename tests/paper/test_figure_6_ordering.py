"""Paper figure 6: ordering, offline and online."""

from cp_ray.core.index import ContextIndex
from cp_ray.core.ordering import order
from cp_ray.core.search import exact_search, greedy_search
from cp_ray.core.types import ReplicaId, ReplicaInfo
from tests.paper.test_figure_5_index import ALPHA, figure_5
from tests.paper.worked_examples import C1, C2, C3, C6, C7, C8, request, show, tokens


def test_new_contexts_begin_with_the_matched_prefix() -> None:
    tree = figure_5()
    printed = {}
    for name, given in (("C6", C6), ("C7", C7), ("C8", C8)):
        found = greedy_search(tree.root, given, tokens(given), ALPHA)
        printed[name] = show(order(given, found[-1].prefix if found else ()))
    assert printed == {"C6": "{1, 2, 4}", "C7": "{5, 7, 8}", "C8": "{1, 2, 9}"}


def test_the_exact_search_finds_the_same_prefixes() -> None:
    tree = figure_5()
    for given in (C6, C7, C8):
        greedy = greedy_search(tree.root, given, tokens(given), ALPHA)
        exact = exact_search(tree.root, given, tokens(given))
        assert max((c.tokens for c in exact), default=0) == (greedy[-1].tokens if greedy else 0)


def test_the_index_orders_online_as_figure_6_does() -> None:
    index = ContextIndex()
    index.build([C1, C2, C3])
    index.set_replicas([ReplicaInfo(ReplicaId("r"), 16, 100_000)])
    requests = [request("C6", C6), request("C7", C7), request("C8", C8)]
    steps = index.plan(requests, now=0.0)
    index.check()
    planned = {step.request_id: show(step.context) for step in steps}
    assert planned == {"C6": "{1, 2, 4}", "C7": "{5, 7, 8}", "C8": "{1, 2, 9}"}
