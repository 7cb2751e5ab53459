"""The places where contexts can branch: all sets of blocks that two or more contexts share.

An order of blocks for every context is a trie, and what a cache without limit computes is the
trie's weight. A trie's inner node can be taken to hold exactly what the contexts below it share,
so the cheapest trie is a cheapest tree from the empty set to all contexts in the lattice of such
sets: a directed Steiner tree (arborescence). An arc P -> Q costs the tokens of Q without P.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cp_ray.core.forest import Int32, Int64, compiled
from cp_ray.errors import ConfigError, InvariantError

LARGEST = 20
"""Blocks in a context: its 2^20 subsets are tried one by one."""


class Lattice(NamedTuple):
    """Sets, arcs between neighbouring sets, and the part of both below each context.

    weight: tokens of each set; set 0 is the empty one. tail, head, cost: of each arc, head -1
    for an arc that ends in a context: nobody else can use it.
    The rest lists, context by context, the sets it contains by ascending size and after them
    itself (node_start[t] up to node_start[t + 1]; places in this range are called local), and
    for each of these the arcs into it (arc_start of the node up to that of the next): local_tail
    and arc. Every arc's tail comes before its head. node: set number, -1 for the context itself.
    mask: bits are places in the context's row.
    """

    weight: Int64
    tail: Int32
    head: Int32
    cost: Int64
    node_start: Int64
    node: Int32
    mask: Int32
    arc_start: Int64
    local_tail: Int32
    arc: Int32


@compiled
def _closures(
    rows: Int32, holders: tuple[Int64, Int32], context: int, size: int, table: Int32
) -> None:
    """For every subset of a context's places: what all other contexts with it share, or -1.

    holders: start and items; those of block b are items[start[b] : start[b + 1]]. table: shape
    (2^size,), filled. Bits are places in the context's row.
    """
    start, items = holders
    table[: 1 << size] = -1
    seen = np.zeros(len(rows), np.int32)
    found = np.empty(len(rows), np.int32)
    count = 0
    for place in range(size):
        block = rows[context, place]
        for at in range(start[block], start[block + 1]):
            other = items[at]
            if other != context:
                if seen[other] == 0:
                    found[count] = other
                    count += 1
                seen[other] |= 1 << place
    for at in range(count):
        table[seen[found[at]]] = seen[found[at]]
    for place in range(size):
        bit = 1 << place
        for subset in range(1 << size):
            if subset & bit == 0:
                table[subset] &= table[subset | bit]


@compiled
def _arcs_upward(table: Int32, masks: Int32, size: int) -> tuple[Int32, Int32]:
    """Tail and head places in `masks` of all arcs, by ascending head; the context is the last.

    masks: the closed subsets by ascending size. An arc leads to the next larger sets that
    contain its tail; where there are none, to the context.
    """
    place = np.full(1 << size, -1, np.int32)
    for at in range(len(masks)):
        place[masks[at]] = at
    tail = np.empty(len(masks) * size + len(masks), np.int32)
    head = np.empty(len(masks) * size + len(masks), np.int32)
    next_larger = np.empty(size, np.int32)
    arcs = 0
    for at in range(len(masks)):
        found = 0
        for bit in range(size):
            if masks[at] >> bit & 1 == 0:
                above = table[masks[at] | 1 << bit]
                if above != -1:
                    next_larger[found] = above
                    found += 1
        before = arcs
        for one in range(found):
            smallest = True
            for other in range(found):
                contained = next_larger[other] & next_larger[one] == next_larger[other]
                if contained and (next_larger[other] != next_larger[one] or other < one):
                    smallest = False
            if smallest:
                tail[arcs] = at
                head[arcs] = place[next_larger[one]]
                arcs += 1
        if arcs == before:
            tail[arcs] = at
            head[arcs] = len(masks)
            arcs += 1
    order = np.argsort(head[:arcs])
    return tail[:arcs][order], head[:arcs][order]


def build_lattice(rows: Int32, sizes: Int32, tokens: Int64) -> Lattice:
    """The lattice of distinct contexts; ConfigError when one has more than LARGEST blocks.

    rows: shape (contexts, k), ascending block numbers padded with -1. sizes: of each row.
    tokens: of each block number.
    """
    if sizes.max(initial=0) > LARGEST:
        raise ConfigError(
            f"a context has {sizes.max()} blocks; the lattice tries all subsets, of at most "
            f"{LARGEST}: use lists cut to that length",
            param="trace",
        )
    count, blocks = len(rows), len(tokens)
    present = rows[rows >= 0]
    order = np.argsort(present, kind="stable")
    items = np.repeat(np.arange(count, dtype=np.int32), sizes)[order]
    start = np.concatenate(([0], np.cumsum(np.bincount(present, minlength=blocks))))
    table = np.empty(1 << int(sizes.max(initial=0)), np.int32)
    keys = np.random.default_rng(0).integers(1, 1 << 63, (2, blocks), np.uint64)
    names: list[npt.NDArray[np.uint64]] = []
    all_masks: list[Int32] = []
    weights: list[Int64] = []
    tails: list[Int32] = []
    heads: list[Int32] = []
    for context in range(count):
        size = int(sizes[context])
        _closures(rows, (start, items), context, size, table)
        subsets = np.arange(1 << size, dtype=np.int32)
        masks = subsets[table[: 1 << size] == subsets]
        masks = np.concatenate(([0], masks[masks > 0])).astype(np.int32)
        masks = masks[np.argsort(np.bitwise_count(masks), kind="stable")]
        tail, head = _arcs_upward(table, masks, size)
        all_masks.append(np.append(masks, (1 << size) - 1).astype(np.int32))
        tails.append(tail)
        heads.append(head)
        inside = (masks[:, None] >> np.arange(size) & 1).astype(bool)
        row = rows[context, :size]
        weights.append(np.append(inside @ tokens[row], tokens[row].sum()))
        named = np.where(inside, keys[:, None, row], np.uint64(0))
        names.append(np.bitwise_xor.reduce(named, axis=2))
    return _numbered(weights, names, all_masks, tails, heads)


def _numbered(
    weights: list[Int64],
    names: list[npt.NDArray[np.uint64]],
    masks: list[Int32],
    tails: list[Int32],
    heads: list[Int32],
) -> Lattice:
    """Give equal sets of different contexts one number, and equal arcs.

    weights, masks: of each context's sets and itself. names: shape (2, sets), equal for equal sets.
    """
    both = np.concatenate(names, axis=1)
    _, first, number = np.unique(both[0], return_index=True, return_inverse=True)
    if not (both[1, first][number] == both[1]).all():
        raise InvariantError("two sets of blocks have the same name")
    sets = [len(name[0]) for name in names]
    node_start = np.concatenate(([0], np.cumsum(np.array(sets) + 1)))
    node = np.full(node_start[-1], -1, np.int32)
    node[np.delete(np.arange(len(node)), node_start[1:] - 1)] = number
    local_weight = np.concatenate(weights)
    counts = [np.bincount(h, minlength=n + 1) for h, n in zip(heads, sets, strict=True)]
    arc_start = np.concatenate(([0], np.cumsum(np.concatenate(counts))))
    local_tail = np.concatenate(tails)
    base = np.repeat(node_start[:-1], [len(tail) for tail in tails])
    head_at = np.repeat(np.arange(len(node)), np.diff(arc_start))
    tail, head = node[base + local_tail].astype(np.int64), node[head_at]
    private = head == -1
    key = np.where(private, -1 - np.arange(len(tail)), tail * (len(first) + 1) + head)
    _, first_arc, arc = np.unique(key, return_index=True, return_inverse=True)
    cost = (local_weight[head_at] - local_weight[base + local_tail])[first_arc]
    return Lattice(
        local_weight[np.flatnonzero(node >= 0)[first]],
        tail[first_arc].astype(np.int32),
        head[first_arc],
        cost,
        node_start,
        node,
        np.concatenate(masks),
        arc_start,
        local_tail,
        arc.astype(np.int32),
    )
