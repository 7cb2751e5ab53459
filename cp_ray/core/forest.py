"""Arrays of the offline construction and the small steps on them, compiled where numba is there.

Imported only when a construction runs. Without numba the same functions run as plain Python:
the tested reference, same results, slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

try:
    import numba as _numba
except ImportError:  # pragma: no cover - the lean install
    _numba = None

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., object])
COMPILES = _numba is not None
NONE = -1
"""No node: the parent of a root, the child of a leaf."""
UNUSED = -2
"""Parent of a node number that no node has."""


def compiled(function: F) -> F:
    """The function as machine code, kept on disk between processes; itself without numba.

    Other threads run meanwhile: one may show the progress.
    """
    if not COMPILES:
        return function
    made: F = _numba.njit(cache=True, nogil=True)(function)
    return made


class Forest(NamedTuple):
    """Binary trees over n contexts; node numbers below n are leaves, room for n inner nodes.

    content: shape (2n, k), ascending block numbers of a node, the first `size` of a row count.
    A leaf has its context's blocks, an inner node what its children share. weight: tokens of
    the content. The sum over inner nodes is what depth-first order reuses in a cache without
    limit.
    """

    content: Int32
    size: Int32
    weight: Int64
    parent: Int32
    left: Int32
    right: Int32


class Postings(NamedTuple):
    """Block number -> the nodes that contain it: items[start[b] : start[b] + length[b]]."""

    start: Int64
    length: Int64
    items: Int32


def new_forest(leaves: Int32, sizes: Int32, tokens: Int64) -> Forest:
    """Every leaf a tree of its own. leaves: shape (n, k); tokens: of each block number."""
    n, k = leaves.shape
    content = np.full((2 * n, max(k, 1)), -1, np.int32)
    content[:n, :k] = leaves
    size = np.zeros(2 * n, np.int32)
    size[:n] = sizes
    weight = np.zeros(2 * n, np.int64)
    weight[:n] = np.where(leaves >= 0, tokens[leaves], 0).sum(axis=1)
    parent = np.full(2 * n, UNUSED, np.int32)
    parent[:n] = NONE
    left = np.full(2 * n, NONE, np.int32)
    return Forest(content, size, weight, parent, left, left.copy())


@compiled
def new_postings(forest: Forest, leaves: int, blocks: int) -> Postings:
    """Postings of the leaves."""
    start = np.zeros(blocks + 1, np.int64)
    for leaf in range(leaves):
        for place in range(forest.size[leaf]):
            start[forest.content[leaf, place] + 1] += 1
    for block in range(blocks):
        start[block + 1] += start[block]
    length = np.zeros(blocks, np.int64)
    items = np.empty(start[blocks], np.int32)
    for leaf in range(leaves):
        for place in range(forest.size[leaf]):
            block = forest.content[leaf, place]
            items[start[block] + length[block]] = leaf
            length[block] += 1
    return Postings(start, length, items)


@compiled
def intersect(forest: Forest, node: int, tokens: Int64) -> bool:
    """Set an inner node's content to what its children share; whether that changed it.

    A node's content only ever grows or shrinks as a set, so equal size means equal content.
    """
    one, other = forest.left[node], forest.right[node]
    count = 0
    weight = 0
    a = b = 0
    while a < forest.size[one] and b < forest.size[other]:
        left, right = forest.content[one, a], forest.content[other, b]
        if left == right:
            forest.content[node, count] = left
            weight += tokens[left]
            count += 1
        a += left <= right
        b += right <= left
    changed = count != forest.size[node]
    forest.size[node] = count
    forest.weight[node] = weight
    return bool(changed)


@compiled
def intersect_upward(forest: Forest, node: int, tokens: Int64) -> int:
    """`intersect` from a node to its root, as far as anything changes; the change in weight."""
    gained = 0
    while node != NONE:
        before = forest.weight[node]
        if not intersect(forest, node, tokens):
            break
        gained += forest.weight[node] - before
        node = forest.parent[node]
    return gained


@compiled
def join(forest: Forest, node: int, one: int, other: int) -> None:
    """Make `node` the parent of two roots, or of `one` where it stands and the root `other`."""
    above = forest.parent[one]
    forest.parent[node] = above
    forest.left[node] = one
    forest.right[node] = other
    forest.parent[one] = node
    forest.parent[other] = node
    forest.size[node] = -1
    forest.weight[node] = 0
    if above != NONE:
        if forest.left[above] == one:
            forest.left[above] = node
        else:
            forest.right[above] = node


@compiled
def cut(forest: Forest, node: int) -> int:
    """Take a node out from under its parent, whose number is then unused; returns the sibling."""
    parent = forest.parent[node]
    sibling = forest.right[parent] if forest.left[parent] == node else forest.left[parent]
    above = forest.parent[parent]
    forest.parent[sibling] = above
    if above != NONE:
        if forest.left[above] == parent:
            forest.left[above] = sibling
        else:
            forest.right[above] = sibling
    forest.parent[node] = NONE
    forest.parent[parent] = UNUSED
    forest.size[parent] = 0
    forest.weight[parent] = 0
    return int(sibling)
