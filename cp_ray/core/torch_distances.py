"""Eq. 1 of every pair on a GPU: the same numbers as `clustering.pairwise_distances`, bit for bit.

Shared blocks and position gaps are counted in whole numbers, and the formula is the same sequence
of float64 operations, so where it runs changes nothing. torch is optional and imported late.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from cp_ray.core.types import BlockId, Context

WORTH_A_GPU = 2000
"""Contexts from which importing torch (some 2 s) can pay."""
CELLS = 1 << 26
"""Pairs counted at a time: at most 64 million, some 2 GB of a GPU's memory."""


def gpu() -> str | None:
    """Name of the device to use, None where torch or a GPU is missing."""
    if find_spec("torch") is None:
        return None
    import torch

    return "cuda" if torch.cuda.is_available() else None


def pairwise_distances_torch(
    contexts: Sequence[Context], alpha: float, device: str
) -> npt.NDArray[np.float64]:
    """In scipy's condensed form: shape (n * (n - 1) / 2,). device: "cuda" or "cpu"."""
    import torch

    count = len(contexts)
    condensed = np.empty(count * (count - 1) // 2)
    if count < 2:
        return condensed
    number: dict[BlockId, int] = {}
    rows = [[number.setdefault(block, len(number)) for block in context] for context in contexts]
    widest = max(map(len, rows))
    padded = np.full((count, widest), len(number))
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    blocks = torch.from_numpy(padded).to(device)
    sizes = torch.tensor([len(row) for row in rows], dtype=torch.float64, device=device)
    # where[b, i]: position of block b in context i, -1 where it is not; the last row is padding.
    where = torch.full((len(number) + 1, count), -1, dtype=torch.int32, device=device)
    columns = torch.arange(count, device=device)
    for position in range(widest):
        where[blocks[:, position], columns] = position
    where[len(number)] = -1
    filled, step = 0, max(1, CELLS // count)
    for first in range(0, count - 1, step):
        own = blocks[first : first + step]
        full = _distances(own, where, sizes[first : first + step], sizes, alpha)
        after = columns[None, :] > columns[first : first + step, None]
        # Rows of the upper triangle follow each other in the condensed form.
        values = full[after].cpu().numpy()
        condensed[filled : filled + len(values)] = values
        filled += len(values)
    return condensed


def _distances(own: Any, where: Any, own_sizes: Any, sizes: Any, alpha: float) -> Any:
    """Eq. 1 of the contexts whose blocks are `own`, shape (m, k), with all: shape (m, n)."""
    import torch

    shape = (own.shape[0], where.shape[1])
    shared = torch.zeros(shape, dtype=torch.int32, device=own.device)
    gaps = torch.zeros(shape, dtype=torch.int32, device=own.device)
    for position in range(own.shape[1]):
        theirs = where[own[:, position]]
        has = theirs >= 0
        shared += has
        gaps += torch.where(has, (theirs - position).abs(), 0)
    largest = torch.maximum(own_sizes[:, None], sizes[None, :]).clamp(min=1.0)
    common = shared.to(torch.float64)
    mean_gap = gaps.to(torch.float64) / common.clamp(min=1.0)
    return torch.where(shared > 0, 1.0 - common / largest + alpha * mean_gap, 1.0)
