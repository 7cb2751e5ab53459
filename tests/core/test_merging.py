"""Offline construction against an independent, literal reference and the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.optimum import SIZES, best_of_all, families
from cp_ray.core import anneal_kernels, forest, greedy_merge, merge_kernels, partner_kernels
from cp_ray.core.merging import FAST, merge, steps
from cp_ray.core.types import BlockId, Context

contexts_strategy = st.lists(
    st.lists(st.sampled_from(sorted(SIZES)), min_size=0, max_size=6, unique=True).map(tuple),
    max_size=14,
)


def replay(contexts: list[Context], sequence: tuple[int, ...]) -> int:
    """Tokens reused when sent one by one into a prefix cache without limit."""
    seen: set[Context] = set()
    reused = 0
    for position in sequence:
        context = contexts[position]
        for end in range(1, len(context) + 1):
            if context[:end] in seen:
                reused += SIZES[context[end - 1]]
            seen.add(context[:end])
    return reused


@settings(max_examples=60, deadline=None)
@given(contexts=contexts_strategy, moves=st.sampled_from([FAST, 20]))
def test_every_context_is_a_permutation_and_every_request_is_sent_once(contexts, moves):
    merged = merge(contexts, SIZES, moves)
    assert [sorted(context) for context in merged.contexts] == [sorted(c) for c in contexts]
    assert sorted(merged.sequence) == list(range(len(contexts)))


@settings(max_examples=60, deadline=None)
@given(contexts=contexts_strategy, moves=st.sampled_from([FAST, 20]))
def test_the_tokens_it_promises_are_those_a_cache_reuses(contexts, moves):
    merged = merge(contexts, SIZES, moves)
    assert replay(list(merged.contexts), merged.sequence) == merged.reused_tokens


def test_the_same_seed_gives_the_same_order():
    contexts = families(1, 40)
    assert merge(contexts, SIZES, 50, seed=3) == merge(contexts, SIZES, 50, seed=3)


@pytest.mark.parametrize(("moves", "floor"), [(FAST, 0.97), (60, 0.99)])
def test_it_is_near_the_optimum_on_small_instances(moves, floor):
    shares = []
    for seed in range(12):
        contexts = families(seed)
        best = best_of_all(contexts)
        shares.append(merge(contexts, SIZES, moves).reused_tokens / best)
        assert shares[-1] <= 1.0
    assert sum(shares) / len(shares) >= floor, shares


def test_it_counts_how_far_it_is():
    done = np.zeros(1, np.int64)
    merge(families(2, 20), SIZES, 5, done=done)
    assert 20 * (1 + 5) < done[0] <= steps(20, 5)


def test_local_search_finds_what_greedy_merging_misses():
    contexts = families(4, 60)
    greedy = merge(contexts, SIZES, FAST).reused_tokens
    assert merge(contexts, SIZES, 300).reused_tokens > greedy


def test_compiled_and_plain_python_agree(monkeypatch):
    if not forest.COMPILES:
        pytest.skip("numba is not installed: there is only plain Python")
    contexts = families(7, 30)
    compiled = merge(contexts, SIZES, 10, seed=5)
    for module in (forest, partner_kernels, merge_kernels, greedy_merge, anneal_kernels):
        for name, value in vars(module).items():
            if hasattr(value, "py_func"):
                monkeypatch.setattr(module, name, value.py_func)
    assert merge(contexts, SIZES, 10, seed=5) == compiled


def test_greedy_merging_takes_the_largest_share_first():
    one, two, three, four = (BlockId(f"b{n}") for n in (1, 2, 3, 4))
    contexts = [(one, two), (two, three, four), (three, four, one)]
    merged = merge(contexts, SIZES)
    # b3 b4 together weigh more than any single block the others share.
    assert set(merged.contexts[1][:2]) == set(merged.contexts[2][:2]) == {three, four}
    assert merged.reused_tokens == SIZES[three] + SIZES[four]


def test_any_number_of_lanes_makes_the_same_forest():
    source = np.random.default_rng(3)
    rows = np.sort(source.permuted(np.tile(np.arange(60), (3000, 1)), axis=1)[:, :6]).astype(
        np.int32
    )
    tokens = source.integers(1, 900, 60)
    made = []
    for lanes in (1, 2, 5):
        grown = forest.new_forest(rows, np.full(3000, 6, np.int32), tokens)
        done = np.zeros(1, np.int64)
        used = greedy_merge.merge_greedily(grown, 3000, tokens, done, lanes)
        assert done[0] == used
        made.append(grown)
    for name in forest.Forest._fields:
        one = getattr(made[0], name)
        assert all(np.array_equal(one, getattr(other, name)) for other in made[1:]), name


def test_a_full_posting_list_takes_the_merged_node():
    rows = np.array([[0, 1, 2], [0, 1, 2], [0, 1, 3], [0, 2, 3]], np.int32)
    tokens = np.array([5, 4, 3, 2], np.int64)
    grown = forest.new_forest(rows, np.full(4, 3, np.int32), tokens)
    assert greedy_merge.merge_greedily(grown, 4, tokens, np.zeros(1, np.int64)) == 7
    assert grown.weight[4:7].sum() == (5 + 4 + 3) + (5 + 4) + 5
