"""Who is heard, and what is believed of those who are not: the brownout ladder.

| rung        | a replica is there when                     | what is believed of it             |
|-------------|---------------------------------------------|------------------------------------|
| exact       | its reports come (engines report when idle) | all that is recorded               |
| approximate | none has come for SILENT_S                  | what was planned there of late     |
| load        | it owes a dump                              | nothing: planned by load only      |

Approximate: what it evicts is not heard, so a record counts for TTL_S to 2 TTL_S and is then
forgotten. Below the ladder is the router without an index: it passes requests through.

A replica that has work, neither reports nor begins an answer for SILENT_S, while others do report,
has stalled: nothing new is planned there, until it does either.
"""

from __future__ import annotations

from typing import Literal

from cp_ray.core.index import ContextIndex
from cp_ray.core.types import ReplicaId, RequestId

SILENT_S = 10.0
"""Three heartbeats of a reporter, and a little."""
TTL_S = 60.0

Rung = Literal["exact", "approximate", "load"]


class Hearing:
    """Owner of when each live replica was heard. now: seconds, as in `ContextIndex.plan`."""

    def __init__(self, index: ContextIndex) -> None:
        self._index = index
        self._reported: dict[ReplicaId, float] = {}
        self._served: dict[ReplicaId, float] = {}
        self._old: dict[ReplicaId, tuple[float, list[RequestId]]] = {}

    def reported(self, replica: ReplicaId, now: float) -> None:
        """A report or a dump has come."""
        self._reported[replica] = now

    def served(self, replica: ReplicaId, now: float) -> None:
        """It began an answer."""
        self._served[replica] = now

    def tick(self, now: float) -> None:
        """Age what silent replicas have, and see who has stalled; call it about once a second."""
        live = self._index.replicas.live
        for table in (self._reported, self._served, self._old):
            for replica in [name for name in table if name not in live]:
                del table[replica]
        for replica in live:
            self._reported.setdefault(replica, now)
        silent = {name for name in live if now - self._reported[name] > SILENT_S}
        for replica in list(self._old.keys() - silent):
            del self._old[replica]
        for replica in silent:
            self._age(replica, now)
        stalled = {name for name in silent if self._has_stalled(name, now)}
        self._index.replicas.shun(stalled if silent != set(live) else set())

    def rung(self, replica: ReplicaId) -> Rung:
        """Where a live replica stands on the ladder."""
        if not self._index.replicas.believed(replica):
            return "load"
        return "approximate" if replica in self._old else "exact"

    def _age(self, replica: ReplicaId, now: float) -> None:
        memory = self._index.memory
        since, old = self._old.get(replica, (None, []))
        if since is None or now - since >= TTL_S:
            for request in old:
                record = memory.records.get(request)
                if record is not None and record.replica == replica:
                    memory.remove(request)
            self._old[replica] = now, memory.requests_on(replica)

    def _has_stalled(self, replica: ReplicaId, now: float) -> bool:
        quiet = now - self._served.get(replica, float("-inf")) > SILENT_S
        return quiet and self._index.load.ledger.running(replica) > 0
