"""A tree in the lattice, grown context by context along the relaxed tree, as a forest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.bound.lattice import Lattice
from cp_ray.core.forest import Forest, Int32, Int64, compiled, intersect, join, new_forest

Float = npt.NDArray[np.float64]
BIAS = 0.95
"""How much of its price an arc loses when the relaxed tree uses it wholly. At 1 wholly used
arcs were free, and a context took any number of them."""


class Tree(NamedTuple):
    """into: the arc by which the tree reaches each set, -1 where it does not. last: the local
    node, counted over all, under which each context hangs."""

    into: Int32
    last: Int64


def used_by(lattice: Lattice, flow: Float) -> Float:
    """Of each arc, the largest part of any context that flows through it: the relaxed tree."""
    used = np.zeros(len(lattice.cost))
    np.maximum.at(used, lattice.arc, flow)
    return used


@compiled
def grow(lattice: Lattice, price: Float, order: Int64) -> Tree:
    """Add the contexts in this order, each by the cheapest way; what is there costs nothing."""
    into = np.full(len(lattice.weight), -1, np.int32)
    last = np.zeros(len(order), np.int64)
    most = np.max(np.diff(lattice.node_start))
    way = np.empty(most)
    before = np.empty(most, np.int64)
    for context in order:
        first = lattice.node_start[context]
        nodes = lattice.node_start[context + 1] - first
        way[0] = 0.0
        for local in range(1, nodes):
            node = lattice.node[first + local]
            way[local] = np.inf
            if node != -1 and into[node] != -1:
                way[local] = 0.0
                before[local] = -1
                continue
            for at in range(lattice.arc_start[first + local], lattice.arc_start[first + local + 1]):
                cost = way[lattice.local_tail[at]] + price[lattice.arc[at]]
                if cost < way[local]:
                    way[local] = cost
                    before[local] = at
        local = lattice.local_tail[before[nodes - 1]]
        last[context] = first + local
        while local != 0 and into[lattice.node[first + local]] == -1:
            into[lattice.node[first + local]] = lattice.arc[before[local]]
            local = lattice.local_tail[before[local]]
    return Tree(into, last)


def cost_of(lattice: Lattice, tree: Tree, sizes_in_tokens: Int64) -> int:
    """Tokens that the tree computes. sizes_in_tokens: of each context."""
    own = sizes_in_tokens - lattice.weight[lattice.node[tree.last]]
    return int(lattice.cost[tree.into[tree.into != -1]].sum() + own.sum())


def forest_of(lattice: Lattice, tree: Tree, rows: Int32, sizes: Int32, tokens: Int64) -> Forest:
    """The tree as binary trees over the contexts: brothers are joined one after the other."""
    forest = new_forest(rows, sizes, tokens)
    brothers: dict[int, list[int]] = {}
    for context, place in enumerate(tree.last.tolist()):
        brothers.setdefault(int(lattice.node[place]), []).append(context)
    used = len(rows)
    sets = np.flatnonzero(tree.into != -1)
    for found in sets[np.argsort(-lattice.weight[sets], kind="stable")].tolist():
        if found not in brothers:
            continue  # nothing hangs below: left over from a repair
        joined, *others = brothers.pop(found)
        for other in others:
            join(forest, used, joined, other)
            intersect(forest, used, tokens)
            joined = used
            used += 1
        brothers.setdefault(int(lattice.tail[tree.into[found]]), []).append(joined)
    return forest


def tree_of(lattice: Lattice, forest: Forest) -> Tree:
    """The forest as a tree of the lattice.

    An inner node holds what all below it share, which is a set of the lattice; where its
    parent is no neighbour, the way between goes down by the lowest arc numbers, which is the
    same for all contexts.
    """
    into = np.full(len(lattice.weight), -1, np.int32)
    contexts = len(lattice.node_start) - 1
    last = lattice.node_start[:-1].copy()
    for context in range(contexts):
        first, end = lattice.node_start[context], lattice.node_start[context + 1]
        local_of = {
            int(forest_mask): at for at, forest_mask in enumerate(lattice.mask[first : end - 1])
        }
        place_of = {
            int(b): 1 << at for at, b in enumerate(forest.content[context, : forest.size[context]])
        }
        above = []
        node = int(forest.parent[context])
        while node != -1:
            content = forest.content[node, : forest.size[node]].tolist()
            above.append(local_of[sum(place_of[block] for block in content)])
            node = int(forest.parent[node])
        if not above:
            continue
        last[context] = first + above[0]
        for local, goal in zip(above, [*above[1:], 0], strict=True):
            _link(lattice, into, int(first), local, goal)
    return Tree(into, last)


def _link(lattice: Lattice, into: Int32, first: int, local: int, goal: int) -> None:
    """Reach `local` from `goal`, a set within it, by arcs of the lattice."""
    wanted = lattice.mask[first + goal]
    while local != goal:
        begin, end = lattice.arc_start[first + local], lattice.arc_start[first + local + 1]
        fitting = [
            at
            for at in range(begin, end)
            if lattice.mask[first + lattice.local_tail[at]] & wanted == wanted
        ]
        at = min(fitting, key=lambda at: int(lattice.arc[at]))
        into[lattice.node[first + local]] = lattice.arc[at]
        local = int(lattice.local_tail[at])
