"""The bound on all offline orders against the exact optimum, and its checker against corruption.

Everything runs as plain Python here: what the compiled functions make on the traces goes through
the same checker in every run of the benchmark.
"""

from __future__ import annotations

import random
from itertools import combinations, islice

import numpy as np
import pytest

from benchmarks import offline_bound
from benchmarks.bound import lattice as lattices
from benchmarks.bound import shares, tree
from benchmarks.bound.check import _check_sets, certified, whole
from benchmarks.bound.lattice import Lattice, build_lattice
from benchmarks.bound.regions import Limits, improve
from benchmarks.bound.repair import repaired
from benchmarks.offline_bound import Problem, relaxed
from benchmarks.optimum import SIZES, best_of_all, families
from cp_ray.core import forest, greedy_merge, merge_kernels, partner_kernels
from cp_ray.errors import ConfigError, InvariantError

ROUNDS = 150


@pytest.fixture(autouse=True)
def plain_python(monkeypatch):
    modules = (
        forest,
        merge_kernels,
        greedy_merge,
        partner_kernels,
        lattices,
        shares,
        tree,
        offline_bound,
    )
    for module in modules:
        for name, value in vars(module).items():
            if hasattr(value, "py_func"):
                monkeypatch.setattr(module, name, value.py_func)


def problem_of(seed: int) -> Problem:
    """Ten contexts of unequal lengths, one of them twice, one within another."""
    contexts = families(seed, 8)
    contexts += [contexts[0][::-1], contexts[1][:3]]
    return Problem(contexts, SIZES)


def played(problem: Problem, rounds: int = ROUNDS) -> shares.Game:
    game = shares.new_game(problem.lattice)
    shares.play(problem.lattice, game, rounds, 2.0)
    return game


def check(problem: Problem, lattice: Lattice, share: np.ndarray) -> int:
    leaves = problem.leaves
    return certified(problem.rows, problem.sizes, leaves.tokens, lattice, whole(share))


def spanning_tree(problem: Problem) -> int:
    """Tokens reused at most: every request takes from one other, none in a circle."""
    sets = [frozenset(context) for context in problem.contexts]
    edges = sorted(
        (
            (sum(SIZES[b] for b in sets[one] & sets[other]), one, other)
            for one, other in combinations(range(len(sets)), 2)
        ),
        reverse=True,
    )
    group = list(range(len(sets)))
    total = 0
    for weight, one, other in edges:
        if group[one] != group[other]:
            total += weight
            group = [group[one] if g == group[other] else g for g in group]
    return total


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_lies_between_the_optimum_and_the_spanning_tree(seed):
    problem = problem_of(seed)
    bound = problem.total - check(problem, problem.lattice, played(problem).share)
    optimum = best_of_all(list(problem.contexts))
    assert optimum <= bound <= spanning_tree(problem)
    assert bound <= 1.02 * optimum


@pytest.mark.parametrize("seed", range(4))
def test_any_sharing_bounds_the_optimum(seed):
    problem = problem_of(seed)
    game = shares.new_game(problem.lattice)
    rng = np.random.default_rng(seed)
    parts = rng.random(len(game.now)) ** 4
    spent = np.bincount(problem.lattice.arc, parts)
    share = problem.lattice.cost[problem.lattice.arc] * parts / spent[problem.lattice.arc]
    bound = problem.total - check(problem, problem.lattice, share)
    assert best_of_all(list(problem.contexts)) <= bound


@pytest.mark.parametrize("seed", range(4))
def test_the_integer_program_finds_the_optimum(seed):
    problem = problem_of(seed)
    lattice = problem.lattice
    count = len(problem.rows)
    grown = tree.grow(lattice, lattice.cost.astype(float), np.arange(count))
    everything = np.ones(len(lattice.cost), bool)
    best, least = repaired(lattice, grown, np.arange(count), everything, 20.0)
    optimum = best_of_all(list(problem.contexts))
    assert problem.total - tree.cost_of(lattice, best, problem.each) == optimum
    assert problem.reused(problem.forest(best)) == optimum
    assert problem.total - least == pytest.approx(optimum)


def test_hanging_some_contexts_anew_costs_no_more():
    problem = problem_of(11)
    lattice = problem.lattice
    count = len(problem.rows)
    everything = np.ones(len(lattice.cost), bool)
    now = tree.grow(lattice, lattice.cost.astype(float), np.arange(count))
    rng = random.Random(0)
    for _ in range(6):
        some = np.array(sorted(rng.sample(range(count), 4)))
        before = problem.reused(problem.forest(now))
        now, _ = repaired(lattice, now, some, everything, 20.0)
        assert problem.reused(problem.forest(now)) >= before


def test_a_tree_becomes_an_order_that_reuses_what_it_saves():
    for seed in range(5):
        problem = problem_of(seed)
        lattice = problem.lattice
        used = tree.used_by(lattice, played(problem, 30).flow)
        order = np.random.default_rng(seed).permutation(len(problem.rows))
        grown = tree.grow(lattice, lattice.cost * (1 - tree.BIAS * used), order)
        cost = tree.cost_of(lattice, grown, problem.each)
        # Joining may find that brothers share more than the tree knew.
        assert problem.reused(problem.forest(grown)) >= problem.total - cost


@pytest.mark.parametrize("seed", range(4))
def test_a_merged_forest_is_a_tree_of_the_lattice(seed):
    problem = problem_of(seed)
    rows, tokens = problem.rows, problem.leaves.tokens
    merged = forest.new_forest(rows, problem.sizes, tokens)
    greedy_merge.merge_greedily(merged, len(rows), tokens, np.zeros(1, np.int64))
    found = tree.tree_of(problem.lattice, merged)
    saved = problem.total - tree.cost_of(problem.lattice, found, problem.each)
    assert saved == problem.reused(merged)
    assert problem.reused(problem.forest(found)) == saved


def test_regions_only_improve():
    problem = problem_of(5)
    lattice = problem.lattice
    now = tree.grow(lattice, lattice.cost.astype(float), np.arange(len(problem.rows)))
    worth = [problem.reused(problem.forest(now))]
    used = np.ones(len(lattice.cost))
    pair = (problem.rows, problem.leaves.tokens)
    better = islice(improve(lattice, now, used, pair, Limits(4, 20.0)), 12)
    worth.extend(problem.reused(problem.forest(each)) for each in better)
    assert worth == sorted(worth)
    assert worth[-1] > worth[0]


def test_shares_beyond_an_arcs_cost_are_refused():
    problem = problem_of(1)
    share = played(problem, 20).share
    count = np.bincount(problem.lattice.arc)[problem.lattice.arc]
    share[int(np.flatnonzero(count > 1)[0])] += 1.0
    with pytest.raises(InvariantError, match="more than its cost"):
        check(problem, problem.lattice, share)


def test_negative_shares_are_refused():
    problem = problem_of(1)
    share = played(problem, 20).share
    share[3] = -1.0
    with pytest.raises(InvariantError, match="negative"):
        check(problem, problem.lattice, share)


def test_an_arc_paid_twice_under_two_numbers_is_refused():
    problem = problem_of(2)
    lattice = problem.lattice
    counted = np.bincount(lattice.arc)
    shared = int(np.flatnonzero(counted > 1)[0])
    arc = lattice.arc.copy()
    arc[np.flatnonzero(arc == shared)[0]] = len(lattice.cost)
    split = lattice._replace(
        arc=arc,
        cost=np.append(lattice.cost, lattice.cost[shared]),
        tail=np.append(lattice.tail, lattice.tail[shared]),
        head=np.append(lattice.head, lattice.head[shared]),
    )
    with pytest.raises(InvariantError, match="more than its cost"):
        check(problem, split, shares.new_game(split).now)


def test_a_missing_arc_is_refused():
    problem = problem_of(3)
    lattice = problem.lattice
    into = np.diff(lattice.arc_start)
    node = int(np.flatnonzero(into > 1)[0])
    gone = int(lattice.arc_start[node])
    starts = lattice.arc_start.copy()
    starts[node + 1 :] -= 1
    lacking = lattice._replace(
        arc_start=starts,
        local_tail=np.delete(lattice.local_tail, gone),
        arc=np.delete(lattice.arc, gone),
    )
    with pytest.raises(InvariantError, match="an arc is missing"):
        check(problem, lacking, np.delete(played(problem, 5).share, gone))


def test_a_lattice_that_lacks_what_two_contexts_share_is_refused():
    problem = problem_of(4)
    rows, tokens = problem.rows.copy(), problem.leaves.tokens
    size = int(problem.sizes[0])
    rows[0, :size] = np.arange(len(tokens), len(tokens) + size)
    without = build_lattice(rows, problem.sizes, np.append(tokens, np.full(size, 9)))
    with pytest.raises(InvariantError, match="context 0: a set is missing that two contexts"):
        check(problem, without, shares.new_game(without).now)


def test_a_lattice_that_lacks_an_intersection_is_refused():
    shared = np.array([0b011, 0b110], np.int32)
    _check_sets(np.array([0, 0b010, 0b011, 0b110], np.int32), shared, 0)
    with pytest.raises(InvariantError, match="a set is missing in which contexts can branch"):
        _check_sets(np.array([0, 0b011, 0b110], np.int32), shared, 0)


def test_a_certificate_is_kept_and_of_its_trace_only(tmp_path):
    problem, other = problem_of(6), problem_of(7)
    file = tmp_path / "shares.npz"
    made = relaxed(problem.lattice, 20, file)
    kept = relaxed(problem.lattice, 20, file)
    assert all((one == two).all() for one, two in zip(made, kept, strict=True))
    with pytest.raises(ConfigError, match="another trace"):
        relaxed(other.lattice, 20, file)


def test_too_long_contexts_are_refused_with_the_limit():
    rows = np.arange(21, dtype=np.int32)[None, :]
    with pytest.raises(ConfigError, match="at most 20"):
        build_lattice(rows, np.array([21], np.int32), np.ones(21, np.int64))
