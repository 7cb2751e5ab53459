"""The root that shares most tokens with a root, over posting lists."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cp_ray.core.forest import NONE, Forest, Int32, Int64, Postings, compiled

REACH = 1536
"""Entries read for one partner, but for the list that passes it: bounds construction to about
n * REACH steps. 8,000 random contexts of 15 blocks lose nothing (512: 0.3 points; 256: 0.8), nor
do the traces."""
GONE, SELF = -(1 << 30), -1
"""Scores of nodes that are no roots any more, and of the one looked up."""
BITS = 62
"""Blocks with a bit: those in most contexts. What two nodes share of them is one `and`, where to
compare their rows reads 15 numbers from all over memory."""


class Popular(NamedTuple):
    """bit: shape (blocks,), NONE where a block has none. has: shape (2n,), a node's blocks' bits.

    Of the node looked up, what is not read yet: bits, tokens: shape (k,), met: shape (1,), how
    many.
    """

    bit: Int32
    has: Int64
    bits: Int64
    tokens: Int64
    met: Int64


class Scratch(NamedTuple):
    """score: shape (2n,), tokens shared so far, 0 between calls, GONE where a node has a parent.

    One array for both: to read a list costs one look into memory per entry. touched, order: lists.

    mark: shape (blocks,), tokens of the blocks of the node looked up, 0 between calls.
    met: shape (1,), how many are touched. tokens: of each block number.
    """

    score: Int32
    touched: Int32
    order: Int32
    mark: Int64
    met: Int64
    tokens: Int64


@compiled
def new_scratch(forest: Forest, leaves: int, tokens: Int64) -> Scratch:
    """For all lookups of one construction. tokens: of each block number, at least 1."""
    return Scratch(
        np.zeros(2 * leaves, np.int32),
        np.empty(2 * leaves, np.int32),
        np.empty(forest.content.shape[1], np.int32),
        np.zeros(len(tokens), np.int64),
        np.zeros(1, np.int64),
        tokens,
    )


@compiled
def _rarest_first(forest: Forest, node: int, postings: Postings, out: Int32) -> None:
    """The node's blocks into `out`, shortest list first (insertion sort: at most k)."""
    for place in range(forest.size[node]):
        block = forest.content[node, place]
        at = place
        while at > 0 and postings.length[out[at - 1]] > postings.length[block]:
            out[at] = out[at - 1]
            at -= 1
        out[at] = block


@compiled
def _marked(forest: Forest, node: int, mark: Int64) -> int:
    """Tokens of a node's blocks that are marked."""
    total = 0
    for place in range(forest.size[node]):
        total += mark[forest.content[node, place]]
    return total


@compiled
def new_popular(forest: Forest, leaves: int, postings: Postings) -> Popular:
    """The most popular blocks, and which of them each leaf has."""
    blocks = len(postings.length)
    bit = np.full(blocks, NONE, np.int32)
    most = np.argsort(-postings.length, kind="mergesort")[:BITS]
    for number in range(len(most)):
        bit[most[number]] = number
    has = np.zeros(2 * leaves, np.int64)
    for node in range(leaves):
        for place in range(forest.size[node]):
            number = bit[forest.content[node, place]]
            if number != NONE:
                has[node] |= np.int64(1) << number
    width = forest.content.shape[1]
    return Popular(
        bit, has, np.empty(width, np.int64), np.empty(width, np.int64), np.zeros(1, np.int64)
    )


@compiled
def join_popular(popular: Popular, node: int, one: int, other: int) -> None:
    """A parent has what both of its children have."""
    popular.has[node] = popular.has[one] & popular.has[other]


@compiled
def gone(scratch: Scratch, one: int, other: int) -> None:
    """Two nodes are no roots any more."""
    scratch.score[one] = GONE
    scratch.score[other] = GONE


@compiled
def _unread(popular: Popular, blocks: Int32, tokens: Int64) -> bool:
    """Note the bits of these blocks; False when one has none."""
    popular.met[0] = len(blocks)
    for at in range(len(blocks)):
        number = popular.bit[blocks[at]]
        if number == NONE:
            return False
        popular.bits[at] = number
        popular.tokens[at] = tokens[blocks[at]]
    return True


@compiled
def _shared_unread(popular: Popular, node: int) -> int:
    """Tokens of the blocks noted that a node has."""
    has = popular.has[node]
    total = 0
    for at in range(popular.met[0]):
        total += popular.tokens[at] * (has >> popular.bits[at] & 1)
    return total


@compiled
def _read(block: int, postings: Postings, scratch: Scratch) -> int:
    """Score the roots on a block's list, dropping the dead; the one with the best score."""
    worth = np.int32(scratch.mark[block])
    met = scratch.met[0]
    start = postings.start[block]
    kept = start
    likeliest, most = NONE, np.int32(0)
    for at in range(start, start + postings.length[block]):
        other = postings.items[at]
        before = scratch.score[other]
        if before == GONE:
            continue
        postings.items[kept] = other
        kept += 1
        if before == SELF:
            continue
        if before == 0:
            scratch.touched[met] = other
            met += 1
        shared = before + worth
        scratch.score[other] = shared
        if shared > most:
            likeliest, most = other, shared
    scratch.met[0] = met
    postings.length[block] = kept - start
    return int(likeliest)


@compiled
def nearest(
    forest: Forest,
    node: int,
    postings: Postings,
    scratch: Scratch,
    popular: Popular,
) -> tuple[int, int]:
    """(partner, shared tokens) of a root among roots, the lowest number on a tie; else NONE, 0.

    Lists are read rarest block first, until the blocks left to read cannot lift a node not
    met so far over the best, or REACH entries were read; then only the nodes met are compared in
    full. The likeliest of each list is compared at once, which ends the reading sooner.
    """
    _rarest_first(forest, node, postings, scratch.order)
    for place in range(forest.size[node]):
        scratch.mark[forest.content[node, place]] = scratch.tokens[forest.content[node, place]]
    left = forest.weight[node]
    scratch.met[0] = 0
    scratch.score[node] = SELF
    read = best = 0
    lists = forest.size[node]
    for place in range(forest.size[node]):
        if left < best or read >= REACH:
            lists = place
            break
        block = scratch.order[place]
        read += postings.length[block]
        left -= scratch.tokens[block]
        likeliest = _read(block, postings, scratch)
        if likeliest != NONE:
            best = max(best, _marked(forest, likeliest, scratch.mark))
    partner = NONE
    gain = 0
    by_bits = _unread(popular, scratch.order[lists : forest.size[node]], scratch.tokens)
    for at in range(scratch.met[0]):
        other = scratch.touched[at]
        if scratch.score[other] + left >= best:
            if by_bits:
                shared = scratch.score[other] + _shared_unread(popular, other)
            else:
                shared = _marked(forest, other, scratch.mark)
            if shared > gain or (shared == gain and other < partner):
                partner, gain = other, shared
            best = max(best, gain)
        scratch.score[other] = 0
    scratch.score[node] = 0
    for place in range(forest.size[node]):
        scratch.mark[forest.content[node, place]] = 0
    return partner, gain
