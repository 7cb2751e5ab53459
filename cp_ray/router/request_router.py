"""PlannedReplicaRouter: the Serve request router of the engine deployment. It obeys the plan.

PlainReplicaRouter: that of an application with reuse=plain, which has no plans.

The ingress has already asked the index; the plan travels in the call's own keyword argument, so
routing makes no call of its own. Ray pickles this module by value: keep it free of state.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, TypedDict

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

PLAN_KWARG = "cp_plan"


class CallPlan(TypedDict, total=False):
    """What the router reads of a plan. JSON types only.

    replica: unique id of the planned replica, or None. branch: what falls back to one replica
    together. avoid: unique ids not to use unless there is no other. sent_to: filled in by the
    router, the unique id of the replica that was chosen last.
    """

    replica: str | None
    branch: str
    avoid: list[str]
    sent_to: str


class PlannedReplicaRouter(RequestRouter):
    """Planned replica, else the branch's rendezvous replica, else the shorter of two queues."""

    def initialize_state(self) -> None:
        """Called by Serve once, before the first request."""
        self._line = asyncio.Lock()
        self._room = asyncio.Event()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Rank the replicas; in each rank Serve takes the shortest queue that has room."""
        kwargs = pending_request.kwargs if pending_request else {}
        plan: CallPlan = kwargs.get(PLAN_KWARG) or CallPlan()
        avoid = plan.get("avoid", ())
        usable = [r for r in candidate_replicas if _uid(r) not in avoid] or candidate_replicas
        free = self.select_available_replicas(usable)
        if not free:
            return [usable]  # all full by the cache: the base class asks each of them
        ranks = []
        planned = [r for r in usable if _uid(r) == plan.get("replica")]
        if planned and planned[0] in free:
            ranks.append(planned)
        if branch := plan.get("branch"):
            # A full planned replica stays in this rank: being asked in passing keeps the count
            # true that other ingresses' requests have raised.
            full = [r for r in planned if r not in free]
            ranks.append([_rendezvous(branch, free), *full])
        if len(free) > 1:
            ranks.append(random.sample(free, 2))
        ranks.append(free)
        return ranks

    async def _choose_replica_for_request(
        self,
        pending_request: PendingRequest,
        *,
        is_retry: bool = False,  # noqa: ARG002 - Serve passes it; a retry is routed like a first try
    ) -> RunningReplica:
        """Route this one request, and no other.

        The base class finds waiting requests by an id that all calls of one parent share, and
        serves only the latest: its siblings wait for ever (Ray 2.60; Chain-of-Agents does this).
        """
        if not self._line.locked():
            replica = await self._try(pending_request, attempt=0)
            if replica is not None:
                return replica
        # Everything is full. Wait in order of arrival; only the first in line looks again, so a
        # long queue does not flood the replicas with questions.
        async with self._line:
            attempt = 0
            while True:
                self._room.clear()
                replica = await self._try(pending_request, attempt)
                if replica is not None:
                    return replica
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._compute_backoff_s(attempt)):
                        await self._room.wait()
                attempt += 1

    async def _try(self, pending_request: PendingRequest, attempt: int) -> RunningReplica | None:
        while not self._replicas_list:
            self._replicas_updated_event.clear()
            await self._replicas_updated_event.wait()
        for rank in await self.choose_replicas(self._replicas_list, pending_request):
            replica = await self._select_from_candidate_replicas(rank, attempt)
            if replica is not None:
                _tell(pending_request, replica)
                return replica
        return None

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Serve: a slot is free."""
        super().on_request_completed(replica_id, internal_request_id)
        self._room.set()


class PlainReplicaRouter(PowerOfTwoChoicesRequestRouter):
    """Serve's own router, but for replicas that the caller knows not to answer."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Two by chance; Serve takes the shorter queue."""
        kwargs = pending_request.kwargs if pending_request else {}
        avoid = (kwargs.get(PLAN_KWARG) or CallPlan()).get("avoid", ())
        usable = [r for r in candidate_replicas if _uid(r) not in avoid]
        if not usable or len(usable) == len(candidate_replicas):
            chosen: list[list[RunningReplica]] = await super().choose_replicas(
                candidate_replicas, pending_request
            )
            return chosen
        return [random.sample(usable, min(2, len(usable)))]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        replica = await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        _tell(pending_request, replica)
        return replica


def _tell(pending_request: PendingRequest, replica: RunningReplica) -> None:
    """Write where it goes into the caller's own dictionary: it lives in this process."""
    if PLAN_KWARG in pending_request.kwargs:
        pending_request.kwargs[PLAN_KWARG]["sent_to"] = _uid(replica)


def _uid(replica: RunningReplica) -> str:
    uid: str = replica.replica_id.unique_id
    return uid


def _rendezvous(branch: str, replicas: Sequence[RunningReplica]) -> Any:
    """Highest random weight: every ingress picks the same one, and few move when one leaves."""
    return max(
        replicas,
        key=lambda r: blake2b(f"{branch}|{_uid(r)}".encode(), digest_size=8).digest(),
    )
