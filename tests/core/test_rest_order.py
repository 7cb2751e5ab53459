"""The order behind the prefix: what popularity means, when it leads, what is remembered."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from cp_ray.core.rest_order import LEARN, RestOrder
from cp_ray.core.types import BlockId, Context

BLOCKS = [BlockId(f"b{number}") for number in range(12)]
SIZES = dict.fromkeys(BLOCKS, 100)
contexts = st.lists(st.sampled_from(BLOCKS), unique=True, max_size=6).map(tuple)


def ids(*numbers: int) -> Context:
    return tuple(BLOCKS[number] for number in numbers)


def sizes(context: Context) -> dict[BlockId, int]:
    return {block: SIZES[block] for block in context}


def arrange(orders: RestOrder, context: Context, prefix: Context = ()) -> Context:
    return orders.arrange(context, prefix, sizes(context))


def popular_traffic(count: int) -> list[Context]:
    """One common pair in every request, ranked anywhere among blocks of its own."""
    rng = random.Random(0)
    made = []
    for _ in range(count):
        blocks = [BLOCKS[0], BLOCKS[1], *rng.sample(BLOCKS[2:], 4)]
        rng.shuffle(blocks)
        made.append(tuple(blocks))
    return made


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(contexts, st.integers(0, 6)), max_size=30),
    memory=st.integers(1, 8),
)
def test_the_result_is_a_permutation_that_keeps_the_prefix(
    requests: list[tuple[Context, int]], memory: int
) -> None:
    orders = RestOrder(memory)
    for context, length in requests:
        prefix = tuple(sorted(context))[:length]
        planned = arrange(orders, context, prefix)
        assert planned[: len(prefix)] == prefix
        assert sorted(planned) == sorted(context)
        orders.check()


def test_without_evidence_the_rank_stands() -> None:
    assert arrange(RestOrder(), ids(3, 1, 2)) == ids(3, 1, 2)


def test_a_block_that_every_request_has_comes_first_once_it_leads() -> None:
    orders = RestOrder()
    for context in popular_traffic(60):
        planned = arrange(orders, context)
    assert orders.popular
    assert set(planned[:2]) == set(ids(0, 1))


def test_popularity_counts_only_requests_that_had_the_prefix_too() -> None:
    orders = RestOrder()
    for context in popular_traffic(60):
        arrange(orders, context)
    for _ in range(5):
        arrange(orders, ids(10, 11, 2))
    # b0 is far more popular, but never came behind b10 and b11 together as often as b2 did.
    together = [context for context in popular_traffic(60) if {"b10", "b11"} <= set(context)]
    assert sum(1 for context in together if "b2" in context) + 5 > len(together)
    assert arrange(orders, ids(0, 2, 10, 11), ids(10, 11)) == ids(10, 11, 2, 0)


def test_the_rank_leads_where_neighbours_keep_their_retrieval_order() -> None:
    """Topics come one after the other; within one the top ranks repeat, the tail is popular."""
    orders = RestOrder()
    blocks = [BlockId(f"t{number}") for number in range(2000)]
    for request in range(200):
        topic = request // 4
        own = blocks[10 * topic : 10 * topic + 3]
        fresh = [blocks[1000 + request]]
        rng = random.Random(request)
        context = (*own, *fresh, *rng.sample(BLOCKS, 4))
        orders.arrange(context, (), dict.fromkeys(context, 100))
    assert not orders.popular


def test_larger_blocks_come_first_among_equally_popular_ones() -> None:
    orders = RestOrder()
    for context in popular_traffic(60):
        arrange(orders, context)
    for first, second in ((0, 1), (1, 0)):
        large = {**sizes(ids(0, 1)), BLOCKS[first]: 1000}
        assert orders.arrange(ids(0, 1), (), large) == ids(first, second)


def test_what_is_past_the_memory_is_forgotten() -> None:
    orders = RestOrder(memory=4)
    for _ in range(4):
        arrange(orders, ids(0, 1))
    for _ in range(4):
        arrange(orders, ids(2, 3))
    orders.check()
    assert arrange(orders, ids(5, 0)) == ids(5, 0)


def test_the_same_traffic_gives_the_same_orders() -> None:
    traffic = popular_traffic(LEARN + 50)
    one, other = RestOrder(), RestOrder()
    assert [arrange(one, c) for c in traffic] == [arrange(other, c) for c in traffic]


def test_requests_of_hundreds_of_blocks_are_remembered_like_others() -> None:
    """Places in a request of over 256 blocks take more than a byte."""
    blocks = [BlockId(f"m{number}") for number in range(400)]
    tokens = dict.fromkeys(blocks, 100)
    orders = RestOrder(memory=40)
    rng = random.Random(0)
    for length in (100, 256, 257, 258, 400):
        for _ in range(8):
            context = (*rng.sample(blocks[:20], 20), *rng.sample(blocks[20:], length - 20))
            planned = orders.arrange(context, context[:3], tokens)
            assert sorted(planned) == sorted(context)
            orders.check()
