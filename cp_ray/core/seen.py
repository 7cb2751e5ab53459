"""A bounded memory of what was met before; and prefixes as numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from cp_ray.core.types import Context, HeadId


class Seen:
    """A bounded set of two generations: what was not met for a whole one is forgotten."""

    def __init__(self, most: int) -> None:
        self._new: set[int | str] = set()
        self._old: set[int | str] = set()
        self._most = most // 2

    def meet(self, items: Iterable[int | str]) -> list[bool]:
        """Whether each was met before; all are from now on."""
        new, old = self._new, self._old
        known = [item in new or item in old for item in items]
        new.update(items)
        if len(new) > self._most:
            self._new, self._old = set(), new
        return known


def bound(table: OrderedDict[Any, Any], most: int) -> None:
    """Drop the oldest entries beyond `most`."""
    while len(table) > most:
        table.popitem(last=False)


def prefixes(head: HeadId, planned: Context) -> list[int]:
    """One number for each growing prefix."""
    found = []
    prefix = hash(head)
    for block in planned:
        prefix = hash((prefix, block))
        found.append(prefix)
    return found
