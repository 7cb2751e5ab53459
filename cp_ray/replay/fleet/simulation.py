"""Virtual time: jobs arrive, a router places them, replicas take their time over them.

Everything happens in order of time; equal times in order of cause. What the engines' caches lose is
told to the router at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.errors import ConfigError
from cp_ray.replay.fleet.job import Job, Live
from cp_ray.replay.fleet.router import Router
from cp_ray.replay.fleet.view import FleetView
from cp_ray.replay.trace import History


class Replica(Protocol):
    """One engine replica in virtual time."""

    cache: PrefixCache
    next_s: float

    def submit(self, live: Live, now: float) -> None:
        """Queue a request."""

    def advance(self) -> tuple[list[Live], list[Live]]:
        """Go to `next_s`: requests whose first token came, and requests that ended."""


class Simulation:
    """Runs one workload once. `done`: every job, in the order in which they ended.

    clients: closed loop: so many at a time, the next when one ends; arrivals are then ignored.
    `spare`: prompts to warm caches with, asked for after every event; `warmed`: those that ended.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        router: Router,
        view: FleetView,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._replicas = replicas
        self._router = router
        self._view = view
        self._clock = clock
        self._events: list[tuple[float, int, int]] = []
        self._number = 0
        self._arriving: list[tuple[float, int, Job]] = []
        self._followers: dict[str, list[Job]] = {}
        self._history: dict[str, History] = {}
        self._line: list[Job] = []
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.spare: Callable[[float], Iterable[Live]] = lambda _now: ()
        self._warming: set[str] = set()
        self.warmed: list[Live] = []
        self.done: list[Live] = []
        self.route_s = 0.0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at that time, before what else happens then. Later calls, later times."""
        self._timers.append((time, action))

    def open_loop(self, jobs: Sequence[Job], times: Sequence[float]) -> None:
        """Play jobs; times: of those without `after`, in order."""
        self._expect_followers(jobs)
        first = [job for job in jobs if job.after is None]
        for time, job in zip(times, first, strict=True):
            self._arrive(job, time)
        self._play(len(jobs))

    def closed_loop(self, jobs: Sequence[Job], clients: int, stagger_s: float) -> None:
        """Play jobs, `clients` chains of them at a time, the first ones `stagger_s` apart."""
        self._expect_followers(jobs)
        self._line = [job for job in reversed(jobs) if job.after is None]
        for number in range(min(clients, len(self._line))):
            self._arrive(self._line.pop(), number * stagger_s)
        self._play(len(jobs))

    def _expect_followers(self, jobs: Sequence[Job]) -> None:
        known = {job.request.request_id for job in jobs}
        for job in jobs:
            if job.after is not None:
                if job.after not in known:
                    raise ConfigError(
                        f"request {job.request.request_id} waits for {job.after}, which the "
                        "workload does not have",
                        param="trace",
                    )
                self._followers.setdefault(job.after, []).append(job)

    def _arrive(self, job: Job, time: float) -> None:
        self._number += 1
        heappush(self._arriving, (time, self._number, job))

    def _play(self, count: int) -> None:
        events = self._events
        while len(self.done) < count:
            while events and events[0][0] != self._replicas[events[0][2]].next_s:
                heappop(events)
            arrives = self._arriving[0][0] if self._arriving else inf
            due = min(arrives, events[0][0] if events else inf)
            if self._timers and self._timers[0][0] <= due:
                now, action = self._timers.pop(0)
                action()
                self._warm(now)
            elif events and events[0][0] <= arrives:
                self._advance(heappop(events)[2])
            elif arrives < inf:
                self._take(arrives)
            else:
                raise ConfigError(
                    "--cache-tokens: a prompt is larger than a replica's cache; give it more",
                    param="cache_tokens",
                )

    def _take(self, now: float) -> None:
        """Let the router place all that comes now."""
        window = []
        while self._arriving and self._arriving[0][0] == now:
            job = heappop(self._arriving)[2]
            history = self._history.pop(job.after, None) if job.after and job.remembers else None
            window.append(Live(job, now, history))
        touched = set()
        began = self._clock()
        for live in self._router.route(window, self._view, now):
            self._view.submitted(live)
            replica = self._replicas[live.replica]
            replica.submit(live, now)
            touched.add(live.replica)
        self.route_s += self._clock() - began
        for at in touched:
            self._schedule(at)
        self._warm(now)

    def _warm(self, now: float) -> None:
        for live in self.spare(now):
            self._warming.add(live.request_id)
            self._view.submitted(live)
            self._replicas[live.replica].submit(live, now)
            self._schedule(live.replica)

    def _advance(self, at: int) -> None:
        replica = self._replicas[at]
        now = replica.next_s
        first, ended = replica.advance()
        evictions = replica.cache.take_evictions()
        if evictions:
            self._router.evicted(at, evictions)
        for live in first:
            self._view.first_token(live)
            self._router.first_token(live, now)
        for live in ended:
            self._view.ended(live)
            self._router.ended(live, now)
            if live.request_id in self._warming:
                self.warmed.append(live)
            else:
                self.done.append(live)
                self._follow(live, now)
        self._schedule(at)
        self._warm(now)

    def _follow(self, live: Live, now: float) -> None:
        followers = self._followers.pop(live.request_id, ())
        for job in followers:
            if job.remembers:
                self._history[live.request_id] = live.as_history()
            self._arrive(job, now + job.pause_s)
        if not followers and self._line:
            self._arrive(self._line.pop(), now)

    def _schedule(self, at: int) -> None:
        due = self._replicas[at].next_s
        if due < inf:
            self._number += 1
            heappush(self._events, (due, self._number, at))
