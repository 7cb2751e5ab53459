"""Admission: requests wait here, fair between tenants, while the replicas are full.

A request takes the place of whichever replica has one, so all places are taken only where every
replica is full: none that is free waits for one that is not.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cp_ray.core.fair_queue import FairQueue, Ticket
from cp_ray.errors import Overloaded


class Admission:
    """One per Router. places: requests without a first token that go to the replicas at a time.

    room: those that wait beyond. told: hears how many of both there are.
    """

    def __init__(self, places: int, room: int, told: Callable[[int], None]) -> None:
        self._queue = FairQueue(places, room)
        self._places = places
        self._told = told
        self._tickets = map(Ticket, itertools.count())
        self._turns: dict[Ticket, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def place(self, tenant: str, cost: int) -> AsyncIterator[None]:
        """Wait for a place and hold it. cost: about the characters to be prefilled.

        Raises Overloaded when too many wait and this tenant has the most of them.
        """
        ticket = next(self._tickets)
        entered = self._queue.enter(ticket, tenant, 1.0 + cost)
        if entered.refused == ticket:
            raise self._full()
        if entered.refused is not None:
            turn = self._turns.pop(entered.refused)
            if not turn.cancelled():
                turn.set_exception(self._full())
        if not entered.goes:
            await self._turn(ticket, tenant)
        self._tell()
        try:
            yield
        finally:
            self._leave()

    async def _turn(self, ticket: Ticket, tenant: str) -> None:
        turn = self._turns[ticket] = asyncio.get_running_loop().create_future()
        self._tell()
        try:
            await turn
        except asyncio.CancelledError:
            if self._turns.pop(ticket, None) is not None:
                self._queue.withdraw(ticket, tenant)
                self._tell()
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave()  # its turn came in the same moment
            raise

    def _leave(self) -> None:
        while (following := self._queue.leave()) is not None:
            turn = self._turns.pop(following)
            if not turn.cancelled():
                turn.set_result(None)
                break
            # Broken off, and not run since: its place goes on to the next.
        self._tell()

    def _tell(self) -> None:
        self._told(self._queue.under_way + self._queue.waiting)

    def _full(self) -> Overloaded:
        queued = self._queue.under_way + self._queue.waiting
        return Overloaded(
            f"{queued} requests wait for a first token already, {self._places} of which the "
            "replicas can hold (max_queued_requests is the rest): try again later"
        )
