"""What a rival's package must do to play, and how it is played beside our copy of its policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from cp_ray.core.types import Eviction
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView


class Rival(Protocol):
    """A rival's own code. It is asked for each request, and told what it would hear in a fleet."""

    def choose(self, live: Live, view: FleetView) -> int:
        """The replica for one request, which is on its way there when this returns."""

    def first_token(self, live: Live) -> None:
        """Its prefill is done."""

    def ended(self, live: Live) -> None:
        """Its answer is complete."""

    def evicted(self, replica: int, evictions: Sequence[Eviction]) -> None:
        """A cache lost pages of these requests."""

    def close(self) -> None:
        """End what was started."""


class Tally(msgspec.Struct):
    """Choices of our copy in the rival's place, each from the very state the rival chose in.

    same: the same replica. tied: another one, which the copy holds to be as good.
    """

    asked: int = 0
    same: int = 0
    tied: int = 0


class SideBySide:
    """The rival decides; the copy, told of everything, is asked what it would have done.

    A router of the simulator. sent: requests of each replica.
    """

    def __init__(self, rival: Rival, copy: OneByOne | None, replicas: int) -> None:
        self._rival = rival
        self._copy = copy
        self.tally = Tally()
        self.sent = [0] * replicas

    def route(self, window: Sequence[Live], view: FleetView, now: float) -> Iterator[Live]:
        """In order of arrival."""
        for live in window:
            copied = self._copy.place(live, view, now) if self._copy else -1
            live.replica = self._rival.choose(live, view)
            self.sent[live.replica] += 1
            self.tally.asked += 1
            if self._copy:
                self.tally.same += copied == live.replica
                self.tally.tied += copied != live.replica and live.replica in self._copy.tied
                self._copy.placed(live)
            yield live

    def first_token(self, live: Live, now: float) -> None:
        self._rival.first_token(live)
        if self._copy:
            self._copy.first_token(live, now)

    def ended(self, live: Live, now: float) -> None:
        self._rival.ended(live)
        if self._copy:
            self._copy.ended(live, now)

    def evicted(self, replica: int, evictions: Sequence[Eviction], /) -> None:
        self._rival.evicted(replica, evictions)
        if self._copy:
            self._copy.evicted(replica, evictions)
