"""Greedy merging over several processor cores: first partners side by side, then merge by merge.

Four in ten seconds go into the first partner of each context. None depends on another, so the
result is the same for any number of lanes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from cp_ray.core.forest import NONE, Forest, Int64, Postings, new_postings
from cp_ray.core.merge_kernels import Lane, Partners, first_partners, merge_roots
from cp_ray.core.partner_kernels import new_popular, new_scratch

LANES = 2
PART = 256
"""Leaves between two looks at the progress; fewer than twice as many are not worth a thread."""


def merge_greedily(
    forest: Forest, leaves: int, tokens: Int64, done: Int64, lanes: int = LANES
) -> int:
    """Merge roots until none share a block; returns the number of nodes in use.

    tokens: of each block number, at least 1. done: shape (1,), counts up: one for each leaf, one
    for each merge. lanes: threads at most.
    """
    partners = Partners(np.full(2 * leaves, NONE, np.int32), np.zeros(2 * leaves, np.int64))
    lanes = max(1, min(lanes, leaves // (2 * PART)))
    own = _lanes(forest, leaves, tokens, lanes)
    seen = [0] * lanes

    def run(number: int) -> None:
        for first in range(number * PART, leaves, lanes * PART):
            last = min(first + PART, leaves)
            first_partners(forest, first, last, own[number], partners)
            seen[number] += last - first
            done[0] = sum(seen)

    if lanes == 1:
        run(0)
    else:
        with ThreadPoolExecutor(lanes) as pool:
            list(pool.map(run, range(lanes)))
    return int(merge_roots(forest, leaves, own[0], partners, done))


def _lanes(forest: Forest, leaves: int, tokens: Int64, count: int) -> list[Lane]:
    """Each with lists of its own: to read one may rewrite it."""
    postings = new_postings(forest, leaves, len(tokens))
    lists = [postings]
    lists += [
        Postings(postings.start, postings.length.copy(), postings.items.copy())
        for _ in range(count - 1)
    ]
    popular = new_popular(forest, leaves, postings)
    return [
        Lane(
            one,
            new_scratch(forest, leaves, tokens),
            popular._replace(
                bits=popular.bits.copy(), tokens=popular.tokens.copy(), met=popular.met.copy()
            ),
        )
        for one in lists
    ]
