"""The interface of a routing policy, and what the stateless ones share."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from cp_ray.core.types import Eviction
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.view import FleetView


class Router(Protocol):
    """Chooses `live.replica`, and may reorder by `live.order`."""

    def route(self, window: Sequence[Live], view: FleetView, now: float) -> Iterator[Live]:
        """Place the requests that came at `now`, and yield each in the order of sending.

        The view knows of a request as soon as it was yielded.
        """

    def first_token(self, live: Live, now: float) -> None:
        """Prefill is done."""

    def ended(self, live: Live, now: float) -> None:
        """The answer is complete."""

    def evicted(self, replica: int, evictions: Sequence[Eviction], /) -> None:
        """A cache lost pages of these requests."""


class OneByOne:
    """A router that places requests singly. seed: of its ties.

    tied: the replicas that were as good as the one last chosen, it among them.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tied: list[int] = []

    def place(self, live: Live, view: FleetView, now: float, /) -> int:
        """The replica for one request."""
        # Not abstract: a router that overrides `route`, as the paper's does, places nothing here.
        raise NotImplementedError

    def route(self, window: Sequence[Live], view: FleetView, now: float) -> Iterator[Live]:
        """In order of arrival."""
        for live in window:
            live.replica = self.place(live, view, now)
            self.placed(live)
            yield live

    def placed(self, live: Live, /) -> None:
        """The request goes to `live.replica`. Nothing to learn."""

    def first_token(self, live: Live, now: float) -> None:
        """Nothing to learn."""

    def ended(self, live: Live, now: float) -> None:
        """Nothing to learn."""

    def evicted(self, replica: int, evictions: Sequence[Eviction], /) -> None:
        """Nothing to learn."""

    def least(self, costs: Sequence[float]) -> int:
        """The replica of least cost; ties are broken evenly."""
        low = min(costs)
        self.tied = [at for at, cost in enumerate(costs) if cost == low]
        return self.random.choice(self.tied)

    def least_of(self, candidates: Collection[int], costs: Sequence[float]) -> int:
        """The candidate of least cost; ties are broken evenly."""
        low = min(costs[at] for at in candidates)
        self.tied = [at for at in candidates if costs[at] == low]
        return self.random.choice(self.tied)
