"""Ray's own PrefixCacheAffinityRouter and its tree actor, without Serve around them.

The router is asked as Serve's handle asks it: `_choose_replica_for_request`, then
`on_request_routed`. Its replicas are only names whose queue lengths are the simulator's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.rivals.prompts import Encode
from cp_ray.core.types import Eviction
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.view import FleetView


class _Request:
    """What Serve LLM's router reads of a completion."""

    def __init__(self, prompt: object) -> None:
        self.prompt = prompt


class _Replica:
    """What the router reads of a replica."""

    node_id = "here"
    availability_zone = None
    multiplexed_model_ids: frozenset[str] = frozenset()
    max_ongoing_requests = 1 << 30
    is_cross_language = False

    def __init__(self, replica_id: Any) -> None:
        self.replica_id = replica_id
        self.running = 0

    async def get_queue_len(self, *, deadline_s: float) -> int:  # noqa: ARG002
        return self.running


class RayPrefixRouter:
    """With its defaults. Starts a Ray of its own, or uses the one that runs in this process."""

    def __init__(self, replicas: int, encode: Encode) -> None:
        import ray
        from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import (
            PrefixCacheAffinityRouter,
        )
        from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import (
            PrefixTreeActor,
        )
        from ray.serve._private.common import (
            DeploymentHandleSource,
            DeploymentID,
            ReplicaID,
            RequestMetadata,
        )
        from ray.serve._private.request_router.common import PendingRequest

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._ray, self._encode = ray, encode
        self._own = not ray.is_initialized()
        if self._own:
            self._folder = tempfile.mkdtemp(prefix="cp-")
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(
                num_cpus=1,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=self._folder,
            )
        self._pending, self._metadata = PendingRequest, RequestMetadata
        deployment = DeploymentID(name="rivals")
        self._loop = asyncio.new_event_loop()
        self._replicas = [_Replica(ReplicaID(f"{at}", deployment)) for at in range(replicas)]
        self._number = {replica.replica_id: at for at, replica in enumerate(self._replicas)}
        self._tree = PrefixTreeActor.options(num_cpus=0).remote()
        self._router = self._loop.run_until_complete(
            self._make(PrefixCacheAffinityRouter, deployment, DeploymentHandleSource.REPLICA)
        )

    async def _make(self, router_class: Any, deployment: Any, source: Any) -> Any:
        router = router_class(deployment_id=deployment, handle_source=source)
        router.initialize_state(tree_actor=self._tree)
        router.update_replicas(self._replicas)
        return router

    def choose(self, live: Live, view: FleetView) -> int:
        for replica, running in zip(self._replicas, view.running, strict=True):
            replica.running = running
        return self._loop.run_until_complete(
            self._choose(_Request(self._encode(live.pieces)), live)
        )

    async def _choose(self, request: _Request, live: Live) -> int:
        metadata = self._metadata(request_id=live.request_id, internal_request_id=live.request_id)
        pending = self._pending(args=[request], kwargs={}, metadata=metadata)
        replica = await self._router._choose_replica_for_request(pending)
        self._router.on_request_routed(pending, replica.replica_id, None)
        return self._number[replica.replica_id]

    def first_token(self, live: Live) -> None:
        """It listens to none."""

    def ended(self, live: Live) -> None:
        """Queue lengths are asked for."""

    def evicted(self, replica: int, evictions: Sequence[Eviction]) -> None:
        """It listens to none."""

    def close(self) -> None:
        self._ray.kill(self._tree)
        self._loop.close()
        if self._own:
            self._ray.shutdown()
            shutil.rmtree(self._folder, ignore_errors=True)
