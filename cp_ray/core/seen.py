"""Bounded memories of what was met or put before; and prefixes as numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from cp_ray.core.types import Context, HeadId

T = TypeVar("T")


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


class Lately(Generic[T]):
    """What was put under names lately: the last `least` for sure, and at most twice as many.

    Two generations, as in `Seen`: a dict in order of age takes half as much again per entry.
    """

    def __init__(self, least: int) -> None:
        self._new: dict[str, T] = {}
        self._old: dict[str, T] = {}
        self._least = least

    def get(self, name: str) -> T | None:
        """What was put last under this name, if it is still here."""
        found = self._new.get(name)
        return self._old.get(name) if found is None else found

    def put(self, name: str, value: T) -> None:
        """Keep it, in place of what was there."""
        self._new[name] = value
        if len(self._new) >= self._least:
            self._new, self._old = {}, self._new

    def fill(self) -> tuple[int, int]:
        """What is kept for sure, and the most that can be."""
        return min(len(self._new) + len(self._old), self._least), self._least


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
