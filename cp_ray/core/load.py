"""The load ledger: prefill tokens and requests outstanding on each replica.

A reservation is made at planning time, so that the next request of the same window sees it.
Every free is idempotent; a reservation whose end was never heard is swept after its lease.
"""

from __future__ import annotations

import msgspec

from cp_ray.core.types import ReplicaId, RequestId
from cp_ray.errors import InvariantError

LEASE_S = 900.0
"""A request older than this has ended without word (its router died)."""


class Reservation(msgspec.Struct):
    """One request's load. prefill_tokens drops to 0 at the first token."""

    replica: ReplicaId
    prefill_tokens: int
    since: float


class LoadLedger:
    """Owner of all reservations, oldest first."""

    def __init__(self) -> None:
        self._reservations: dict[RequestId, Reservation] = {}
        self._prefill: dict[ReplicaId, int] = {}
        self._running: dict[ReplicaId, int] = {}

    def reserve(self, request: RequestId, replica: ReplicaId, tokens: int, now: float) -> None:
        """Add a request's load; replaces an earlier reservation of the same request."""
        self.free(request)
        self._reservations[request] = Reservation(replica, tokens, now)
        self._add(replica, tokens, 1)

    def move(self, request: RequestId, replica: ReplicaId, tokens: int) -> None:
        """The request runs elsewhere than planned and prefills `tokens` there."""
        held = self._reservations.get(request)
        if held is None or held.replica == replica:
            return
        self._add(held.replica, -held.prefill_tokens, -1)
        held.replica, held.prefill_tokens = replica, tokens
        self._add(replica, tokens, 1)

    def prefill_done(self, request: RequestId, now: float) -> None:
        """First token: free the prefill load and renew the lease."""
        held = self._reservations.pop(request, None)
        if held is not None:
            self._add(held.replica, -held.prefill_tokens, 0)
            self._reservations[request] = Reservation(held.replica, 0, max(now, held.since))

    def free(self, request: RequestId) -> None:
        """End, failure or cancel: free all of the request's load."""
        held = self._reservations.pop(request, None)
        if held is not None:
            self._add(held.replica, -held.prefill_tokens, -1)

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
        return self._prefill.get(replica, 0)

    def busy_share(self, replicas: int) -> float:
        """Share of the live replicas, of which there are so many, with prefill to do."""
        return len(self._prefill) / replicas if replicas else 0.0

    def running(self, replica: ReplicaId) -> int:
        """Requests on the replica that have not ended."""
        return self._running.get(replica, 0)

    def __len__(self) -> int:
        return len(self._reservations)

    def _add(self, replica: ReplicaId, tokens: int, requests: int) -> None:
        for table, amount in ((self._prefill, tokens), (self._running, requests)):
            table[replica] = table.get(replica, 0) + amount
            if not table[replica]:
                del table[replica]

    def check(self) -> None:
        """Raise InvariantError unless the sums equal the reservations."""
        prefill: dict[ReplicaId, int] = {}
        running: dict[ReplicaId, int] = {}
        for held in self._reservations.values():
            running[held.replica] = running.get(held.replica, 0) + 1
            if held.prefill_tokens:
                prefill[held.replica] = prefill.get(held.replica, 0) + held.prefill_tokens
        if prefill != self._prefill or running != self._running:
            raise InvariantError("load ledger: sums differ from reservations")
