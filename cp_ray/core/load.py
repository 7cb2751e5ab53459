"""The load ledger: prefill and requests outstanding on each replica, and how long they will take.

A reservation is made at planning time, so that the next request of the same window sees it.
Every free is idempotent; a reservation whose end was never heard is swept after its lease.
"""

from __future__ import annotations

import math
from typing import final

import msgspec

from cp_ray.core.last_step import ALONE, LastStep
from cp_ray.core.types import ReplicaId, RequestId
from cp_ray.errors import InvariantError

LEASE_S = 900.0
"""A request older than this has ended without word (its router died)."""
LATE_SHARE = 0.1
"""What is left of a prefill that has already taken longer than estimated."""


class Work(msgspec.Struct, frozen=True):
    """One prompt on one replica. cached, new: its tokens. seconds: estimated, for its prefill.

    ttft_s: estimated time to its first token, the wait included. step_tokens: as `ReplicaInfo`.
    """

    cached: int
    new: int
    seconds: float
    ttft_s: float = 0.0
    step_tokens: int = 0


class Done(msgspec.Struct, frozen=True):
    """A prefill that ended. seconds: since it could begin. ttft_s: since it was planned."""

    replica: ReplicaId
    work: Work
    seconds: float
    ttft_s: float


class Reservation(msgspec.Struct, gc=False):
    """One request's load. since: planned, then first token. prefilled: only the answer is left.

    prefill_s: what the replica had prefilled by its first token, as `Queue.prefill_s`.
    """

    replica: ReplicaId
    work: Work
    since: float
    prefilled: bool = False
    prefill_s: float = 0.0


@final
class Queue:
    """What one replica has to do. waiting: without a first token, in order of sending.

    began: when the first of them could begin. first_s: how long that one takes. owed_s: seconds
    that are that one's, though others' first tokens were heard since. prefill_s: seconds of
    prefill done so far, waits for room left out. last: step of the last in the line.
    """

    __slots__ = (
        "began",
        "first_s",
        "last",
        "new_tokens",
        "owed_s",
        "pinned",
        "prefill_s",
        "running",
        "seconds",
        "waiting",
    )

    def __init__(self) -> None:
        self.waiting: dict[RequestId, Work] = {}
        self.new_tokens = 0
        self.seconds = 0.0
        self.running = 0
        self.pinned = 0
        self.began = 0.0
        self.first_s = 0.0
        self.owed_s = 0.0
        self.prefill_s = 0.0
        self.last = ALONE

    def add(self, request: RequestId, work: Work, now: float) -> None:
        """One more in the line."""
        self.last = self.joinable(work.step_tokens, self.wait_s(now)).joined(work.new)
        if not self.waiting:
            self.began = now
            self.first_s = work.seconds
            self.owed_s = 0.0
        self.waiting[request] = work
        self.new_tokens += work.new
        self.seconds += work.seconds
        self.running += 1
        self.pinned += work.new

    def heard(self, request: RequestId, work: Work, since: float, now: float) -> float:
        """It has had its first token; seconds of prefill that are its own. since: planned.

        Several routers tell, each when it comes to it: a later request may be heard of first, and
        of one whose router died nothing ever. What passed before the later one was planned is
        the first one's, whenever that is heard of, and else nobody's: perhaps nothing ran.
        """
        first = next(iter(self.waiting)) == request
        if first:
            could = self.began
        else:
            could = max(self.began, since)
            self.owed_s += could - self.began
        seconds = max(0.0, now - could) + (self.owed_s if first else 0.0)
        self.left(request, work)
        self.began = now
        return seconds

    def left(self, request: RequestId, work: Work) -> None:
        """It is not in the line any more."""
        if next(iter(self.waiting)) == request:
            self.owed_s = 0.0
        del self.waiting[request]
        self.new_tokens -= work.new
        if self.waiting:
            self.seconds -= work.seconds
            self.first_s = next(iter(self.waiting.values())).seconds
        else:
            self.seconds = 0.0  # sums of floats drift: an empty queue is exactly empty

    def wait_s(self, now: float) -> float:
        """Seconds until all that is planned there is prefilled."""
        if not self.waiting:
            return 0.0
        done_s = min(max(0.0, now - self.began), self.first_s * (1 - LATE_SHARE))
        return max(0.0, self.seconds - done_s)

    def joinable(self, step_tokens: int, wait_s: float) -> LastStep:
        """Its last step, as far as one more prompt would get into it. wait_s: as now told."""
        if not step_tokens or wait_s * self.new_tokens <= self.last.tokens * self.seconds:
            return LastStep(step_tokens)  # nobody waits, or the step has begun
        return self.last

    @property
    def answering(self) -> int:
        """Requests that have had their first token."""
        return self.running - len(self.waiting)


IDLE = Queue()
"""Of a replica that has nothing to do; never changed."""


class LoadLedger:
    """Owner of all reservations, oldest first."""

    def __init__(self) -> None:
        self._reservations: dict[RequestId, Reservation] = {}
        self._queues: dict[ReplicaId, Queue] = {}

    def reserve(self, request: RequestId, replica: ReplicaId, work: Work, now: float) -> None:
        """Add a request's load; replaces an earlier reservation of the same request."""
        self.free(request)
        self._reservations[request] = Reservation(replica, work, now)
        self._add(request, replica, work, now)

    def move(self, request: RequestId, replica: ReplicaId, work: Work, now: float) -> None:
        """The request runs elsewhere than planned, and is this work there."""
        held = self._reservations.get(request)
        if held is None or held.replica == replica:
            return
        self._take(request, held)
        held.replica, held.work, held.prefilled = replica, work, False
        self._add(request, replica, work, now)

    def prefill_done(self, request: RequestId, now: float) -> Done | None:
        """First token: free the prefill load and renew the lease. None: not known, or not new."""
        held = self._reservations.pop(request, None)
        if held is None:
            return None
        ended = max(now, held.since)
        queue = self._queues[held.replica]
        seconds = 0.0
        if not held.prefilled:
            seconds = queue.heard(request, held.work, held.since, now)
            queue.prefill_s += min(seconds, held.work.seconds)
        self._reservations[request] = Reservation(
            held.replica, held.work, ended, prefilled=True, prefill_s=queue.prefill_s
        )
        if held.prefilled:
            return None
        return Done(held.replica, held.work, seconds, ended - held.since)

    def free(self, request: RequestId) -> Reservation | None:
        """End, failure or cancel: free all of the request's load; what it was, if it was any."""
        held = self._reservations.pop(request, None)
        if held is not None:
            self._take(request, held)
        return held

    def answered(self, request: RequestId, now: float) -> float | None:
        """Free all of the load; seconds since its first token in which nothing was prefilled there.

        None: not known, or without a first token.
        """
        held = self._reservations.get(request)
        if held is None:
            return None
        beside_s = self._queues[held.replica].prefill_s - held.prefill_s
        self.free(request)
        return max(0.0, now - held.since - beside_s) if held.prefilled else None

    def drop_replica(self, replica: ReplicaId) -> None:
        """The replica is gone, and with it all its load."""
        for request in [r for r, held in self._reservations.items() if held.replica == replica]:
            self.free(request)

    def sweep(self, now: float) -> list[RequestId]:
        """Free reservations past their lease; returns whose."""
        swept = []
        while self._reservations:
            request, held = next(iter(self._reservations.items()))
            if now - held.since < LEASE_S:
                break
            self.free(request)
            swept.append(request)
        return swept

    def prefill_tokens(self, replica: ReplicaId) -> int:
        """Prompt tokens planned on the replica and not yet prefilled."""
        return self._queues.get(replica, IDLE).new_tokens

    def wait_s(self, replica: ReplicaId, now: float) -> float:
        """Seconds until the replica has prefilled all that is planned there."""
        return self._queues.get(replica, IDLE).wait_s(now)

    def running(self, replica: ReplicaId) -> int:
        """Requests on the replica that have not ended."""
        return self._queues.get(replica, IDLE).running

    def answering(self, replica: ReplicaId) -> int:
        """Requests on the replica that have had their first token."""
        return self._queues.get(replica, IDLE).answering

    @property
    def queues(self) -> dict[ReplicaId, Queue]:
        """What each replica has to do, to be read only; none of it where a replica has no entry."""
        return self._queues

    def pinned_tokens(self, replica: ReplicaId) -> int:
        """Cache that running requests took up for themselves: what they did not find there."""
        return self._queues.get(replica, IDLE).pinned

    def __len__(self) -> int:
        return len(self._reservations)

    def _add(self, request: RequestId, replica: ReplicaId, work: Work, now: float) -> None:
        queue = self._queues.get(replica)
        if queue is None:
            queue = self._queues[replica] = Queue()
        queue.add(request, work, now)

    def _take(self, request: RequestId, held: Reservation) -> None:
        queue = self._queues[held.replica]
        if not held.prefilled:
            queue.left(request, held.work)
            if queue.waiting:  # the next one could not begin before it was planned
                following = self._reservations[next(iter(queue.waiting))]
                queue.began = max(queue.began, following.since)
        queue.running -= 1
        queue.pinned -= held.work.new
        if not queue.running:
            del self._queues[held.replica]

    def check(self) -> None:
        """Raise InvariantError unless the sums equal the reservations."""
        queues: dict[ReplicaId, Queue] = {}
        for request, held in self._reservations.items():
            queue = queues.setdefault(held.replica, Queue())
            queue.running += 1
            queue.pinned += held.work.new
            if not held.prefilled:
                queue.waiting[request] = held.work
                queue.new_tokens += held.work.new
                queue.seconds += held.work.seconds
        if queues.keys() != self._queues.keys():
            raise InvariantError("load ledger: queues of replicas without reservations")
        for replica, queue in queues.items():
            mine = self._queues[replica]
            if mine.waiting and mine.began < self._reservations[next(iter(mine.waiting))].since:
                raise InvariantError(f"load ledger: {replica} began before it had anything to do")
            same = mine.waiting == queue.waiting and mine.new_tokens == queue.new_tokens
            counts = mine.running == queue.running and mine.pinned == queue.pinned
            if not (same and counts and math.isclose(mine.seconds, queue.seconds, abs_tol=1e-6)):
                raise InvariantError(f"load ledger: sums of {replica} differ from reservations")
