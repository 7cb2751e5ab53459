"""Agglomerative merging by the largest common token weight, over posting lists.

A merge saves exactly the tokens its two nodes share, so the largest share first is the greedy
rule for the objective itself. What a node shares with any other only falls as nodes merge, so a
node's best partner is looked up again only when it comes up and that partner is gone.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from cp_ray.core.forest import (
    NONE,
    Forest,
    Int64,
    Postings,
    compiled,
    intersect,
    join,
    new_postings,
)
from cp_ray.core.partner_kernels import gone, join_popular, nearest, new_popular, new_scratch


@compiled
def _alive(forest: Forest, node: int) -> bool:
    return bool(forest.parent[node] == NONE)


@compiled
def _compact(forest: Forest, postings: Postings, block: int) -> None:
    """Drop merged nodes from a block's list; what stays keeps its order."""
    start = postings.start[block]
    kept = start
    for at in range(start, start + postings.length[block]):
        node = postings.items[at]
        if forest.parent[node] == NONE:
            postings.items[kept] = node
            kept += 1
    postings.length[block] = kept - start


@compiled
def _enlist(forest: Forest, node: int, postings: Postings) -> None:
    """Add an inner node to its blocks' lists; its two children, now dead, left room there."""
    for place in range(forest.size[node]):
        block = forest.content[node, place]
        end = postings.start[block] + postings.length[block]
        if end == postings.start[block + 1]:
            _compact(forest, postings, block)
            end = postings.start[block] + postings.length[block]
        postings.items[end] = node
        postings.length[block] += 1


@compiled
def merge_greedily(forest: Forest, leaves: int, tokens: Int64, done: Int64) -> int:
    """Merge roots until none share a block; returns the number of nodes in use.

    tokens: of each block number, at least 1. Ties go to the lower node number. done: shape (1,),
    counts up: one for each leaf, one for each merge.
    """
    postings = new_postings(forest, leaves, len(tokens))
    popular = new_popular(forest, leaves, postings)
    scratch = new_scratch(forest, leaves, tokens)
    partner = np.full(2 * leaves, NONE, np.int32)
    gain = np.zeros(2 * leaves, np.int64)
    heap = [(0, 0) for _ in range(0)]
    for node in range(leaves):
        partner[node], gain[node] = nearest(forest, node, postings, scratch, popular)
        if gain[node] > 0:
            heap.append((-int(gain[node]), node))
        done[0] += 1
    heapify(heap)
    used = leaves
    while len(heap) > 0:
        negative, node = heappop(heap)
        if not _alive(forest, node) or -negative != gain[node]:
            continue
        other = partner[node]
        if _alive(forest, other):
            join(forest, used, node, other)
            intersect(forest, used, tokens)
            join_popular(popular, used, node, other)
            gone(scratch, node, other)
            _enlist(forest, used, postings)
            node = used
            used += 1
            done[0] += 1
        partner[node], gain[node] = nearest(forest, node, postings, scratch, popular)
        if gain[node] > 0:
            heappush(heap, (-int(gain[node]), node))
    return used
