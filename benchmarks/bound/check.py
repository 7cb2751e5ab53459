"""Whether a sharing of costs really bounds every order: checked without what made it.

Nothing is taken from the lattice on trust, and nothing compiled or hashed is used. numpy only,
whole numbers only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.bound.lattice import Lattice
from cp_ray.core.forest import Int32, Int64
from cp_ray.errors import InvariantError

UNITS = 1000
"""Shares are whole thousandths of a token."""


def whole(share: npt.NDArray[np.float64]) -> Int64:
    """Shares in whole units, rounded down so that no sum grows."""
    return np.floor(share * UNITS).astype(np.int64)


def certified(rows: Int32, sizes: Int32, tokens: Int64, lattice: Lattice, share: Int64) -> int:
    """Tokens that every order of these distinct contexts computes at least.

    rows, sizes, tokens: as for `build_lattice`. share: of each local arc, in units. Raises
    InvariantError when sets or arcs are missing, or an arc's shares exceed its cost.
    """
    number, weight = _numbers(rows, tokens, lattice)
    holders = _holders(rows, len(tokens))
    heads: list[Int64] = []
    tails: list[Int64] = []
    total = 0
    for context in range(len(rows)):
        first, end = lattice.node_start[context], lattice.node_start[context + 1]
        masks = lattice.mask[first:end]
        if masks[-1] != (1 << int(sizes[context])) - 1:
            raise InvariantError(f"context {context} has another last node than itself")
        shared = _shared(rows[context, : sizes[context]], context, holders, len(rows))
        _check_sets(masks[:-1], shared, context)
        starts = lattice.arc_start[first : end + 1]
        head = np.repeat(np.arange(end - first), np.diff(starts))
        tail = lattice.local_tail[starts[0] : starts[-1]].astype(np.int64)
        _check_arcs(masks, tail, head, context)
        heads.append(first + head)
        tails.append(first + tail)
        total += _cheapest(tail, head, share[starts[0] : starts[-1]], end - first)
    _check_shares(np.concatenate(tails), np.concatenate(heads), number, weight, share)
    return -(-total // UNITS)


def _numbers(rows: Int32, tokens: Int64, lattice: Lattice) -> tuple[Int64, Int64]:
    """Equal numbers for equal sets of blocks, and tokens, of every local node.

    A context is told apart from an equal set: its number is its own.
    """
    owner = np.repeat(np.arange(len(rows)), np.diff(lattice.node_start))
    own = np.zeros(len(owner), bool)
    own[lattice.node_start[1:] - 1] = True
    inside = (lattice.mask[:, None] >> np.arange(rows.shape[1]) & 1).astype(bool)
    sets = np.where(inside, rows[owner], -1)
    if (inside & (sets < 0)).any():
        raise InvariantError("a set has a place beyond its context's end")
    weight = np.where(inside, tokens[sets], 0).sum(axis=1)
    sets = np.sort(sets, axis=1)
    marked = np.column_stack((sets, np.where(own, owner, -1)))
    order = np.lexsort(marked.T)
    changes = (marked[order][1:] != marked[order][:-1]).any(axis=1)
    number = np.empty(len(owner), np.int64)
    number[order] = np.concatenate(([0], np.cumsum(changes)))
    return number, weight


def _holders(rows: Int32, blocks: int) -> list[Int64]:
    """The contexts with each block."""
    owner, place = np.nonzero(rows >= 0)
    block = rows[owner, place]
    order = np.argsort(block, kind="stable")
    return np.split(owner[order], np.cumsum(np.bincount(block, minlength=blocks))[:-1])


def _shared(row: Int32, context: int, holders: list[Int64], count: int) -> Int32:
    """What the context shares with each other one, as masks; nothing among them."""
    shared = np.zeros(count, np.int32)
    for place, block in enumerate(row.tolist()):
        shared[holders[block]] |= 1 << place
    shared[context] = 0
    return np.unique(shared)


def _check_sets(masks: Int32, shared: Int32, context: int) -> None:
    """All that can be a branching is there: what is shared, and all intersections of it."""
    if masks[0] != 0 or len(np.unique(masks)) != len(masks):
        raise InvariantError(f"context {context}: no empty set, or a set twice")
    known = np.zeros(int(max(masks.max(), shared.max())) + 1, bool)
    known[masks] = True
    if not known[shared].all():
        raise InvariantError(f"context {context}: a set is missing that two contexts share")
    if not known[masks[:, None] & shared[None, :]].all():
        raise InvariantError(f"context {context}: a set is missing in which contexts can branch")


def _check_arcs(masks: Int32, tail: Int64, head: Int64, context: int) -> None:
    """From every set to every larger one leads an arc that stays below it.

    Hence every way through larger and larger sets is one along arcs, at the same cost. The
    last node is the context, larger than all.
    """
    last = len(masks) - 1
    within = (masks[:, None] & masks[None, :]) == masks[:, None]
    within[last, :last] = False
    within[:, last] = True
    if not within[tail, head].all() or (tail == head).any() or (np.diff(head) < 0).any():
        raise InvariantError(f"context {context}: an arc that does not lead upward, or disorder")
    if (tail > head).any():
        raise InvariantError(f"context {context}: an arc ends before it begins")
    order = np.argsort(tail, kind="stable")
    begins = np.flatnonzero(np.diff(tail[order], prepend=-1))
    served = np.eye(len(masks), dtype=bool)
    served[tail[order][begins]] |= np.logical_or.reduceat(within[head[order]], begins, axis=0)
    if not served[within].all():
        raise InvariantError(f"context {context}: an arc is missing")


def _cheapest(tail: Int64, head: Int64, share: Int64, nodes: int) -> int:
    """Units of the cheapest way from the first node to the last; arcs by ascending head."""
    ways = [0] + [-1] * (nodes - 1)
    for one, other, units in zip(tail.tolist(), head.tolist(), share.tolist(), strict=True):
        way = ways[one] + units
        if ways[other] < 0 or way < ways[other]:
            ways[other] = way
    return ways[-1]


def _check_shares(tail: Int64, head: Int64, number: Int64, weight: Int64, share: Int64) -> None:
    """No share is negative, and equal arcs' shares add up to no more than the arc's cost."""
    if (share < 0).any():
        raise InvariantError("a share is negative")
    key = number[tail] * (number.max() + 1) + number[head]
    arcs, arc = np.unique(key, return_inverse=True)
    spent = np.zeros(len(arcs), np.int64)
    np.add.at(spent, arc, share)
    cost = np.zeros(len(arcs), np.int64)
    cost[arc] = (weight[head] - weight[tail]) * UNITS
    if (spent > cost).any():
        raise InvariantError("the shares of an arc add up to more than its cost")
