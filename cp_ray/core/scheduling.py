"""Algorithm 5: search-path-based grouping and scheduling (paper 5.2, appendix D)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from cp_ray.core.types import Step

T = TypeVar("T")


def in_lanes(sequence: Sequence[T], lanes: int) -> list[T]:
    """A depth-first sequence for an engine that has `lanes` requests in flight at a time.

    Neighbours share most, but where only finished prefixes are shared they miss together when
    they run together. So each lane gets a stretch of its own, and what runs at one time comes
    from far apart: every request but a lane's first follows its leader.
    """
    length = -(-len(sequence) // max(lanes, 1))
    stretches = [sequence[at : at + length] for at in range(0, len(sequence), max(length, 1))]
    return [stretch[turn] for turn in range(length) for stretch in stretches if turn < len(stretch)]


def with_positions(steps: Sequence[Step]) -> list[tuple[Step, int]]:
    """Steps as planned, each with its place among those of its branch."""
    sent: Counter[str] = Counter()
    placed = []
    for step in steps:
        branch = step.branch or f"\0{step.request_id}"
        placed.append((step, sent[branch]))
        sent[branch] += 1
    return placed


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
