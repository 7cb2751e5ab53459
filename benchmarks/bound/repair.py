"""The best tree there is for some contexts, all others left where they are: by integer program."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from benchmarks.bound.lattice import Lattice
from benchmarks.bound.tree import Tree
from cp_ray.core.forest import Int64

Bools = npt.NDArray[np.bool_]


def repaired(
    lattice: Lattice, tree: Tree, contexts: Int64, allowed: Bools, seconds: float
) -> tuple[Tree, float]:
    """The tree with these contexts hung anew, and the solver's bound on their part of the cost.

    allowed: arcs that may be used; those of the tree always may. What only these contexts used
    is taken out first. With all contexts and all arcs this is the optimum, if time allows.
    """
    rest = np.ones(len(tree.last), bool)
    rest[contexts] = False
    fixed = _used(lattice, tree, np.flatnonzero(rest))
    local = np.concatenate(
        [np.arange(*lattice.arc_start[lattice.node_start[[c, c + 1]]]) for c in contexts]
    )
    head_at = np.repeat(np.arange(len(lattice.node)), np.diff(lattice.arc_start))
    node = lattice.node[head_at[local]]
    arc = lattice.arc[local]
    reached = (node != -1) & (tree.into[node] == arc)
    usable = np.where((node != -1) & fixed[node], reached, allowed[arc] | reached | (node == -1))
    local, node, arc = local[usable], node[usable], arc[usable]
    base = np.repeat(lattice.node_start[:-1], np.diff(lattice.node_start))
    head = head_at[local]
    tail = base[head] + lattice.local_tail[local]
    price = np.where((node != -1) & fixed[node], 0, lattice.cost[arc]).astype(np.float64)
    starts, ends = lattice.node_start[contexts], lattice.node_start[contexts + 1] - 1
    flow = _solve(_Ways(price, arc, tail, head, starts, ends), seconds)
    if flow is None:
        return tree, -np.inf
    chosen, bound = flow
    into = tree.into.copy()
    into[~fixed] = -1
    last = tree.last.copy()
    own = node == -1
    last[np.searchsorted(lattice.node_start, head[chosen & own], side="right") - 1] = tail[
        chosen & own
    ]
    into[node[chosen & ~own]] = arc[chosen & ~own]
    return Tree(into, last), bound


def _used(lattice: Lattice, tree: Tree, contexts: Int64) -> Bools:
    """Sets that these contexts hang under, the empty one too."""
    used = np.zeros(len(lattice.weight), bool)
    used[0] = True
    for hung in lattice.node[tree.last[contexts]].tolist():
        found = hung
        while not used[found]:
            used[found] = True
            found = int(lattice.tail[tree.into[found]])
    return used


class _Ways(NamedTuple):
    """Local arcs. tail, head: local nodes counted over all. starts, ends: the nodes where each
    context's way begins and ends."""

    price: npt.NDArray[np.float64]
    arc: npt.NDArray[np.int32]
    tail: Int64
    head: Int64
    starts: Int64
    ends: Int64


def _solve(ways: _Ways, seconds: float) -> tuple[Bools, float] | None:
    """Of these local arcs those that the cheapest tree uses, and a bound on its price.

    One variable says whether an arc is bought, one for each of its local arcs that a context's
    way takes it; None when time was too short for any tree.
    """
    price, arc, tail, head, starts, ends = ways
    nodes, at = np.unique(np.concatenate((tail, head)), return_inverse=True)
    arcs, bought = np.unique(arc, return_inverse=True)
    many, few = len(arc), len(arcs)
    cost = np.zeros(few + many)
    cost[bought] = price
    flow = few + np.arange(many)
    one = np.ones(many)
    balance = coo_array(
        (
            np.concatenate((-one, one)),
            (at, np.concatenate((flow, flow))),
        ),
        shape=(len(nodes), few + many),
    ).tocsr()
    needed = np.zeros(len(nodes))
    needed[np.isin(nodes, starts)] = -1.0
    needed[np.isin(nodes, ends)] = 1.0
    paid = coo_array(
        (np.concatenate((one, -one)), (np.tile(np.arange(many), 2), np.append(flow, bought))),
        shape=(many, few + many),
    ).tocsr()
    found = milp(
        cost,
        constraints=[
            LinearConstraint(balance, needed, needed),
            LinearConstraint(paid, -np.inf, 0.0),
        ],
        integrality=np.append(np.ones(few), np.zeros(many)),
        bounds=Bounds(0.0, 1.0),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    return _traced(ways, found.x[few:]), float(found.mip_dual_bound)


def _traced(ways: _Ways, flow: npt.NDArray[np.float64]) -> Bools:
    """One way for each context, back along the largest flow: the solver may split it where two
    ways cost the same."""
    largest: dict[int, int] = {}
    for at in np.argsort(flow, kind="stable").tolist():
        largest[int(ways.head[at])] = at
    chosen = np.zeros(len(flow), bool)
    begins = set(ways.starts.tolist())
    for end in ways.ends.tolist():
        node = end
        while node not in begins:
            chosen[largest[node]] = True
            node = int(ways.tail[largest[node]])
    return chosen
