"""Local search on a merged forest: simulated annealing that cuts subtrees out and regrafts them.

Growing on at a node shares what both hold, and takes from every ancestor what the newcomer
lacks; moving single contexts into places that already fit is the special case that cannot
change the ancestors, and gets stuck earlier.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from cp_ray.core.forest import (
    NONE,
    UNUSED,
    Forest,
    Int32,
    Int64,
    compiled,
    cut,
    intersect_upward,
    join,
    new_postings,
)

_MODULUS, _FACTOR = 2147483647, 48271
"""Lehmer's generator: the same numbers compiled and not, and no state outside the arguments."""
PLACES = 4096
"""Places one move may choose among."""


class Cooling(NamedTuple):
    """moves: how many. hot, cold: first and last temperature, tokens. tries: leaves per move."""

    moves: int
    hot: float
    cold: float
    tries: int
    seed: int


class _Places(NamedTuple):
    """Where a cut-out subtree may go: `node[i]` gains `gain[i]` tokens, i below found[0].

    path: scratch. mark: shape (blocks,), tokens of the blocks that the subtree contains, else 0.
    """

    node: Int32
    gain: Int64
    found: Int64
    path: Int32
    mark: Int64


@compiled
def _draw(state: Int64, below: int) -> int:
    """A whole number in [0, below)."""
    state[0] = state[0] * _FACTOR % _MODULUS
    return int(state[0] * below // _MODULUS)


@compiled
def _heat(state: Int64, temperature: float) -> float:
    """Gumbel noise: the largest of value + heat is a Boltzmann choice among the values."""
    state[0] = state[0] * _FACTOR % _MODULUS
    return -temperature * math.log(-math.log(state[0] / _MODULUS))


@compiled
def _add_places(forest: Forest, start: int, places: _Places, first_only: bool) -> None:
    """Add `start`, and unless first_only its ancestors, as places for the marked content.

    gain of a place: what the newcomer shares with it, less what the ancestors lose. Only
    gains above 0 are places.
    """
    steps = 0
    node = start
    while node != NONE:
        places.path[steps] = node
        steps += 1
        node = forest.parent[node]
    lost = 0
    for step in range(steps - 1, -1, -1):
        node = places.path[step]
        shared = 0
        for at in range(forest.size[node]):
            shared += places.mark[forest.content[node, at]]
        if shared > lost and places.found[0] < PLACES and (step == 0 or not first_only):
            places.node[places.found[0]] = node
            places.gain[places.found[0]] = shared - lost
            places.found[0] += 1
        lost += forest.weight[node] - shared


@compiled
def _is_below(forest: Forest, node: int, above: int) -> bool:
    while node != NONE:
        if node == above:
            return True
        node = forest.parent[node]
    return False


@compiled
def _choose(state: Int64, temperature: float, places: _Places) -> int:
    """A place, or NONE: to stay a tree of its own, which gains 0."""
    best = _heat(state, temperature)
    chosen = NONE
    for at in range(places.found[0]):
        value = places.gain[at] + _heat(state, temperature)
        if value > best:
            best, chosen = value, places.node[at]
    return int(chosen)


@compiled
def _pick(forest: Forest, leaves: int, state: Int64) -> int:
    """A random leaf or, one time in two each step up, an ancestor of it."""
    node = _draw(state, leaves)
    while forest.parent[node] != NONE and _draw(state, 2) == 0:
        node = forest.parent[node]
    return int(node)


@compiled
def anneal(forest: Forest, leaves: int, tokens: Int64, cooling: Cooling, done: Int64) -> None:
    """Make the moves, each to its old place or an ancestor of some leaf that shares a block.

    tokens: of each block number. done: shape (1,), counts the moves up.
    """
    postings = new_postings(forest, leaves, len(tokens))
    state = np.full(1, cooling.seed % (_MODULUS - 1) + 1, np.int64)
    places = _Places(
        np.empty(PLACES, np.int32),
        np.empty(PLACES, np.int64),
        np.zeros(1, np.int64),
        np.empty(2 * leaves, np.int32),
        np.zeros(len(tokens), np.int64),
    )
    spare = np.flatnonzero(forest.parent == UNUSED)
    spare = np.append(spare, np.zeros(leaves, np.int64))
    spares = np.sum(forest.parent == UNUSED)
    for move in range(cooling.moves):
        temperature = cooling.hot * (cooling.cold / cooling.hot) ** (move / cooling.moves)
        done[0] += 1
        node = _pick(forest, leaves, state)
        if forest.size[node] == 0:
            continue
        for at in range(forest.size[node]):
            places.mark[forest.content[node, at]] = tokens[forest.content[node, at]]
        places.found[0] = 0
        parent = forest.parent[node]
        if parent != NONE:
            sibling = cut(forest, node)
            spare[spares] = parent
            spares += 1
            intersect_upward(forest, forest.parent[sibling], tokens)
            _add_places(forest, sibling, places, True)
        for _ in range(cooling.tries):
            block = forest.content[node, _draw(state, forest.size[node])]
            leaf = postings.items[postings.start[block] + _draw(state, postings.length[block])]
            if not _is_below(forest, leaf, node):
                _add_places(forest, leaf, places, False)
        for at in range(forest.size[node]):
            places.mark[forest.content[node, at]] = 0
        chosen = _choose(state, temperature, places)
        if chosen != NONE:
            spares -= 1
            fresh = spare[spares]
            join(forest, fresh, chosen, node)
            intersect_upward(forest, fresh, tokens)
