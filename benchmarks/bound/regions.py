"""Improving a tree region by region: each time the contexts nearest to one, by integer program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.bound.lattice import Lattice
from benchmarks.bound.repair import Bools, repaired
from benchmarks.bound.tree import Tree, cost_of
from cp_ray.core.forest import Int32, Int64

KEPT = 1e-3
"""Arcs that the relaxed tree uses less than this are left out of the programs."""


class Limits(NamedTuple):
    """size: contexts of a region. seconds: at most, for one region's program."""

    size: int
    seconds: float


def region(rows: Int32, tokens: Int64, centre: int, size: int, rng: np.random.Generator) -> Int64:
    """The centre and those that share most tokens with it, with some noise: sorted."""
    mark = np.zeros(len(tokens), np.float64)
    mark[rows[centre][rows[centre] >= 0]] = tokens[rows[centre][rows[centre] >= 0]]
    shared = np.where(rows >= 0, mark[rows], 0).sum(axis=1)
    shared *= 1 + 0.2 * rng.random(len(rows))
    shared[centre] = np.inf
    near: Int64 = np.sort(np.argsort(-shared, kind="stable")[:size])
    return near


def improve(
    lattice: Lattice,
    tree: Tree,
    used: npt.NDArray[np.float64],
    contexts: tuple[Int32, Int64],
    limits: Limits,
) -> Iterator[Tree]:
    """Better and better trees, one after each region, without end.

    used: as `used_by` says. contexts: rows and tokens, as for `build_lattice`.
    """
    rows, tokens = contexts
    size, seconds = limits
    rng = np.random.default_rng(0)
    allowed: Bools = used > KEPT
    each = np.where(rows >= 0, tokens[rows], 0).sum(axis=1)
    least = cost_of(lattice, tree, each)
    while True:
        for centre in rng.permutation(len(rows)).tolist():
            near = region(rows, tokens, centre, size, rng)
            other, _ = repaired(lattice, tree, near, allowed, seconds)
            cost = cost_of(lattice, other, each)
            if cost <= least:  # worse only where time was too short
                tree, least = other, cost
            yield tree
