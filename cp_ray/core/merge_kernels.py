"""Agglomerative merging by the largest common token weight, over posting lists.

A merge saves exactly the tokens its two nodes share, so the largest share first is the greedy
rule for the objective itself. What a node shares with any other only falls as nodes merge, so a
node's best partner is looked up again only when it comes up and that partner is gone.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from cp_ray.core.forest import NONE, Forest, Int32, Int64, Postings, compiled, intersect, join
from cp_ray.core.partner_kernels import Popular, Scratch, gone, join_popular, nearest


class Lane(NamedTuple):
    """What one thread reads and writes while it looks for partners."""

    postings: Postings
    scratch: Scratch
    popular: Popular


class Partners(NamedTuple):
    """Best partner of each root, shape (2n,), NONE without one; gain: what the two share."""

    of: Int32
    gain: Int64


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
def first_partners(forest: Forest, first: int, last: int, lane: Lane, partners: Partners) -> None:
    """Find the partners of leaves first to last - 1."""
    postings, scratch, popular = lane.postings, lane.scratch, lane.popular
    for node in range(first, last):
        partners.of[node], partners.gain[node] = nearest(forest, node, postings, scratch, popular)


@compiled
def merge_roots(forest: Forest, leaves: int, lane: Lane, partners: Partners, done: Int64) -> int:
    """Merge until no two roots share a block; returns the number of nodes in use.

    partners: of the leaves so far. done: shape (1,), counts merges up. Ties go to the lower node
    number.
    """
    postings, scratch, popular = lane.postings, lane.scratch, lane.popular
    partner, gain = partners.of, partners.gain
    heap = [(-int(gain[node]), node) for node in range(leaves) if gain[node] > 0]
    heapify(heap)
    used = leaves
    while len(heap) > 0:
        negative, node = heappop(heap)
        if not _alive(forest, node) or -negative != gain[node]:
            continue
        other = partner[node]
        if _alive(forest, other):
            join(forest, used, node, other)
            intersect(forest, used, scratch.tokens)
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
