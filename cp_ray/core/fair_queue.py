"""Fair queue: who goes next when more ask than may be under way. Start-time fair queueing.

Each tenant has a line, and a tag: the cost of what it was let through so far, never behind those
who are served now. The line with the lowest tag goes first, so that

- between two tenants that both wait, what was let through differs by one request of each at most;
- a request of a tenant that did not wait before lets one of each other tenant go first at most,
  whatever they queue: nobody starves;
- where too many wait, the last of the longest line is refused, so that a tenant is never refused
  while another has more waiting.
"""

from __future__ import annotations

from collections import deque
from typing import NewType

import msgspec

from cp_ray.errors import InvariantError

Ticket = NewType("Ticket", int)
"""A request in the queue; the higher, the later."""


class Entered(msgspec.Struct, frozen=True):
    """What came of a request. refused: who has to go, perhaps itself."""

    goes: bool
    refused: Ticket | None = None


class _Line(msgspec.Struct):
    tag: float
    waiting: deque[tuple[Ticket, float]]


class FairQueue:
    """Owner of who is under way and who waits.

    places: under way at most. room: waiting at most. Cost: any unit, the same for all.
    """

    def __init__(self, places: int, room: int) -> None:
        self._places = places
        self._room = room
        self._lines: dict[str, _Line] = {}
        self._served = 0.0
        self.under_way = 0
        self.waiting = 0

    def enter(self, ticket: Ticket, tenant: str, cost: float) -> Entered:
        """A request comes. It goes at once where a place is free."""
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Line(self._served, deque())
        if self.under_way < self._places:
            self._let_through(line, cost)
            self._forget()
            return Entered(goes=True)
        if not line.waiting:
            line.tag = max(line.tag, self._served)
        line.waiting.append((ticket, cost))
        self.waiting += 1
        refused = self._refuse(line) if self.waiting > self._room else None
        return Entered(goes=False, refused=refused)

    def leave(self) -> Ticket | None:
        """One under way has ended; who goes instead."""
        self.under_way -= 1
        lines = [line for line in self._lines.values() if line.waiting]
        following = None
        if lines:
            line = min(lines, key=lambda line: (line.tag, line.waiting[0][0]))
            following, cost = line.waiting.popleft()
            self.waiting -= 1
            self._let_through(line, cost)
        self._forget()
        return following

    def withdraw(self, ticket: Ticket, tenant: str) -> None:
        """One that waits has given up."""
        line = self._lines[tenant]
        at = [waiting for waiting, _ in line.waiting].index(ticket)
        del line.waiting[at]
        self.waiting -= 1
        self._forget()

    def check(self) -> None:
        """Raise InvariantError unless counts are right and nobody waits beside a free place."""
        waiting = [ticket for line in self._lines.values() for ticket, _ in line.waiting]
        _require(self.waiting == len(waiting) == len(set(waiting)), "waiting ones are miscounted")
        _require(self.waiting <= self._room, "too many wait")
        _require(0 <= self.under_way <= self._places, "too many are under way")
        _require(not waiting or self.under_way == self._places, "one waits beside a free place")
        for line in self._lines.values():
            _require(list(line.waiting) == sorted(line.waiting), "a line is out of order")
            _require(bool(line.waiting) or line.tag > self._served, "an idle line stays")

    def _let_through(self, line: _Line, cost: float) -> None:
        self._served = max(self._served, line.tag)
        line.tag = self._served + cost
        self.under_way += 1

    def _refuse(self, newest: _Line) -> Ticket:
        longest = max(self._lines.values(), key=lambda line: (len(line.waiting), line is newest))
        ticket, _ = longest.waiting.pop()
        self.waiting -= 1
        self._forget()
        return ticket

    def _forget(self) -> None:
        """Who does not wait and is not ahead has no history."""
        if not self.under_way:
            self._lines.clear()
            self._served = 0.0
        idle = [
            tenant
            for tenant, line in self._lines.items()
            if not line.waiting and line.tag <= self._served
        ]
        for tenant in idle:
            del self._lines[tenant]


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(f"fair queue: {message}")
