"""Offline construction: the order of blocks and of requests that reuses most (ours; not Alg. 4).

Contexts are merged by the largest common token weight, then improved by local search; each node
of the resulting trees puts the blocks its contexts share in front, and requests go depth first.
Reuse in a cache without limit is exactly the weight of all inner nodes (docs/decisions/0008).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from cp_ray.core.types import BlockId, Context

if TYPE_CHECKING:
    from cp_ray.core.forest import Forest

FAST, THOROUGH = 0, 500
"""Moves of local search per distinct context: none, and about as many as still pay."""
_HOT, _COLD, _TRIES = 0.5, 0.01, 8
"""Temperatures in mean block sizes, and leaves looked at in one move (benchmarks/LOG.md)."""


class Merged(msgspec.Struct, frozen=True):
    """contexts: the input, blocks reordered, in input order. sequence: input positions as sent.

    reused_tokens: block tokens found cached when sent so, one by one, into a cache without limit.
    """

    contexts: tuple[Context, ...]
    sequence: tuple[int, ...]
    reused_tokens: int


class Leaves(msgspec.Struct, frozen=True):
    """Distinct contexts as rows of ascending block numbers, padded with -1."""

    rows: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32]
    blocks: list[BlockId]
    tokens: npt.NDArray[np.int64]
    members: list[list[int]]


def merge(
    contexts: Sequence[Context],
    tokens: Mapping[BlockId, int],
    moves_per_context: int = FAST,
    seed: int = 0,
    done: npt.NDArray[np.int64] | None = None,
) -> Merged:
    """Order blocks and requests; the same result for the same input and seed.

    tokens: of every block, at least 1. moves_per_context: FAST costs some 0.1 ms a context,
    THOROUGH some 10 ms, for up to half a point of reuse. done: shape (1,), counts up to at most
    `steps` meanwhile, for another thread to show.
    """
    from cp_ray.core.anneal_kernels import Cooling, anneal
    from cp_ray.core.forest import new_forest
    from cp_ray.core.greedy_merge import merge_greedily

    leaves = leaves_of(contexts, tokens)
    count = len(leaves.members)
    forest = new_forest(leaves.rows, leaves.sizes, leaves.tokens)
    done = np.zeros(1, np.int64) if done is None else done
    merge_greedily(forest, count, leaves.tokens, done)
    if moves_per_context and leaves.blocks:
        mean = float(leaves.tokens.mean())
        moves = moves_per_context * count
        cooling = Cooling(moves, _HOT * mean, _COLD * mean, _TRIES, seed)
        anneal(forest, count, leaves.tokens, cooling, done)
    repeated = sum(
        int(forest.weight[leaf]) * (len(members) - 1) for leaf, members in enumerate(leaves.members)
    )
    ordered, sequence = depth_first(forest, leaves, contexts)
    return Merged(ordered, sequence, repeated + int(forest.weight[count:].sum()))


def steps(contexts: int, moves_per_context: int) -> int:
    """How far `merge` counts when all contexts differ and all join."""
    return contexts * (2 + moves_per_context)


def leaves_of(contexts: Sequence[Context], tokens: Mapping[BlockId, int]) -> Leaves:
    """Equal sets become one leaf; block numbers follow first appearance."""
    number: dict[BlockId, int] = {}
    members: dict[tuple[int, ...], list[int]] = {}
    for position, context in enumerate(contexts):
        row = tuple(sorted([number.setdefault(block, len(number)) for block in context]))
        members.setdefault(row, []).append(position)
    sizes = np.array([len(row) for row in members], np.int32)
    rows = np.full((len(members), max(sizes, default=0)), -1, np.int32)
    for leaf, row in enumerate(members):
        rows[leaf, : len(row)] = row
    weights = np.array([max(1, tokens[block]) for block in number], np.int64)
    return Leaves(rows, sizes, list(number), weights, list(members.values()))


def depth_first(
    forest: Forest, leaves: Leaves, contexts: Sequence[Context]
) -> tuple[tuple[Context, ...], tuple[int, ...]]:
    """Blocks of each context and the order of sending, from the forest.

    Among a node's own blocks those in most contexts come first, then by first appearance; a
    leaf's own keep the client's rank.
    """
    count = len(leaves.members)
    popularity = Counter(leaves.rows[leaves.rows >= 0].tolist())
    ordered: list[Context] = list(contexts)
    sequence: list[int] = []
    roots = np.flatnonzero(forest.parent == -1)
    stack: list[tuple[int, tuple[int, ...]]] = [(int(root), ()) for root in reversed(roots)]
    while stack:
        node, prefix = stack.pop()
        if node < count:
            front = tuple(leaves.blocks[block] for block in prefix)
            taken = set(front)
            own = [b for b in contexts[leaves.members[node][0]] if b not in taken]
            for position in leaves.members[node]:
                ordered[position] = (*front, *own)
            sequence += leaves.members[node]
            continue
        content = forest.content[node, : forest.size[node]].tolist()
        fresh = [block for block in content if block not in prefix]
        fresh.sort(key=lambda block: (-popularity[block], block))
        children = (int(forest.right[node]), int(forest.left[node]))
        stack.extend((child, (*prefix, *fresh)) for child in children)
    return tuple(ordered), tuple(sequence)
