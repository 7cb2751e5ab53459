"""Algorithm 5: search-path-based grouping and scheduling (paper 5.2, appendix D)."""

from __future__ import annotations

from collections.abc import Sequence

from cp_ray.core.types import Step


def schedule(steps: Sequence[Step]) -> list[list[Step]]:
    """Groups of one branch each, largest group first; in a group, longest search path first.

    Ties keep arrival order. A step without a branch (pass-through) is a group of its own:
    strangers in one group would be the largest and go first.
    """
    groups: dict[str, list[Step]] = {}
    for step in steps:
        groups.setdefault(step.branch or f"\0{step.request_id}", []).append(step)
    for group in groups.values():
        group.sort(key=lambda step: len(step.search_path), reverse=True)
    return sorted(groups.values(), key=len, reverse=True)
