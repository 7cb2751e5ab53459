"""Algorithm 4: index construction via hierarchical clustering (paper 4.1, appendix D)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import linkage

from cp_ray.core.distance import DEFAULT_ALPHA
from cp_ray.core.torch_distances import WORTH_A_GPU, gpu, pairwise_distances_torch
from cp_ray.core.types import BlockId, Context


class Clustered(msgspec.Struct, frozen=True):
    """contexts: the input, each with its blocks in prefix-aligned order, in input order.

    merges: content of each virtual node that shares a block -> the distance that created it.
    """

    contexts: tuple[Context, ...]
    merges: dict[Context, float]


def cluster(contexts: Sequence[Context], alpha: float = DEFAULT_ALPHA) -> Clustered:
    """Merge the closest pairs (average linkage on Eq. 1), then align prefixes top-down.

    Equal contexts become one leaf. O(n^2) time and memory in the number of distinct contexts.
    """
    leaves = list({frozenset(context): context for context in reversed(contexts)}.values())[::-1]
    content: list[frozenset[BlockId]] = [frozenset(leaf) for leaf in leaves]
    merged: Sequence[Sequence[float]] = (
        linkage(pairwise_distances(leaves, alpha), "average").tolist() if len(leaves) > 1 else []
    )
    children: dict[int, tuple[int, int]] = {}
    created_at: dict[int, float] = {}
    for left, right, height, _ in merged:
        node = len(content)
        content.append(content[int(left)] & content[int(right)])
        children[node] = (int(left), int(right))
        created_at[node] = float(height)
    aligned, merges = _align(leaves, content, children, created_at)
    return Clustered(tuple(aligned[frozenset(context)] for context in contexts), merges)


def _align(
    leaves: Sequence[Context],
    content: Sequence[frozenset[BlockId]],
    children: dict[int, tuple[int, int]],
    created_at: dict[int, float],
) -> tuple[dict[frozenset[BlockId], Context], dict[Context, float]]:
    """Phase 3: each node's blocks are its parent's, then its own.

    An inner node's own blocks are sorted by id (the paper's sorted intersection), a leaf's keep
    the client's rank. A node with empty content passes its parent's prefix through, which is
    the same as relinking its children to the grandparent.
    """
    aligned: dict[frozenset[BlockId], Context] = {}
    merges: dict[Context, float] = {}
    stack: list[tuple[int, Context]] = [(len(content) - 1, ())] if content else []
    while stack:
        node, prefix = stack.pop()
        taken = set(prefix)
        if node < len(leaves):
            own = [block for block in leaves[node] if block not in taken]
            aligned[content[node]] = (*prefix, *own)
            continue
        docs = (*prefix, *sorted(content[node] - taken))
        if docs:
            merges.setdefault(docs, created_at[node])
        stack.extend((child, docs) for child in children[node])
    return aligned, merges


def pairwise_distances(
    contexts: Sequence[Context], alpha: float = DEFAULT_ALPHA
) -> npt.NDArray[np.float64]:
    """Eq. 1 of every pair, in scipy's condensed form: shape (n * (n - 1) / 2,).

    Walks each block's list of occurrences, so the work is the number of shared blocks over all
    pairs and not n^2 * k^2. On a GPU, where there is one and the contexts are many, the same
    numbers come from `torch_distances`.
    """
    count = len(contexts)
    device = gpu() if count >= WORTH_A_GPU else None
    if device is not None:
        return pairwise_distances_torch(contexts, alpha, device)
    shared = np.zeros((count, count), dtype=np.int32)
    gaps = np.zeros((count, count), dtype=np.float64)
    where: dict[BlockId, list[tuple[int, int]]] = {}
    for index, context in enumerate(contexts):
        for position, block in enumerate(context):
            where.setdefault(block, []).append((index, position))
    for occurrences in where.values():
        rows = np.array([index for index, _ in occurrences])
        positions = np.array([position for _, position in occurrences], dtype=np.float64)
        grid = np.ix_(rows, rows)
        shared[grid] += 1
        gaps[grid] += np.abs(positions[:, None] - positions[None, :])
    sizes = np.array([len(context) for context in contexts], dtype=np.float64)
    largest = np.maximum(np.maximum(sizes[:, None], sizes[None, :]), 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_gap = np.where(shared > 0, gaps / np.maximum(shared, 1), 0.0)
    full = np.where(shared > 0, 1.0 - shared / largest + alpha * mean_gap, 1.0)
    upper: npt.NDArray[np.float64] = full[np.triu_indices(count, k=1)]
    return upper
