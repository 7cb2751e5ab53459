"""Order annotation (paper 5.3) and location annotation (paper 6).

Both name blocks by label. A label depends on content only, never on rank or position, so the
bytes of a block are the same in every prompt. Every label named occurs in the prompt sent.
"""

from __future__ import annotations

from collections.abc import Sequence


def order_annotation(labels: Sequence[str]) -> str:
    """Tell the model the original relevance ranking, best first (paper 5.3)."""
    ranking = " > ".join(f"[Doc {label}]" for label in labels)
    return f"Read the documents in this order of priority: {ranking} and answer the question.\n\n"


def location_annotation(label: str) -> str:
    """Stand in for a block that an earlier turn of this conversation already holds (paper 6)."""
    return f"Please refer to [Doc {label}] in the previous conversation.\n\n"
