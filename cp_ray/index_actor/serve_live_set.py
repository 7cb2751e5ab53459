"""The live set: which engine replicas Serve has, as it changes. Home of all private Ray imports.

Serve's controller answers a long poll within milliseconds of a change. That interface is private
to Ray: where it is missing or different, public calls once a second take its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from cp_ray.core.types import ReplicaId, ReplicaInfo
from cp_ray.errors import InvariantError

_POLL_PERIOD_S = 1.0
_RETRY_S = 1.0
_DRIFT = (ImportError, AttributeError, TypeError, KeyError)
_log = logging.getLogger("ray.serve")


class LiveSet:
    """Follows one deployment; tells `on_change` the whole set whenever it differs.

    source: "long_poll" or "poll", for `state()`.
    """

    def __init__(
        self, app: str, deployment: str, on_change: Callable[[list[ReplicaInfo]], None]
    ) -> None:
        self._app = app
        self._deployment = deployment
        self._on_change = on_change
        self._known: list[ReplicaInfo] = []
        self.source = "long_poll"

    async def run(self) -> None:
        """Follow for ever. While Serve cannot be asked, the last set stands.

        Raises InvariantError when `on_change` fails: what it did not take must not seem known.
        """
        while True:
            try:
                if self.source == "long_poll":
                    await self._long_poll()
                else:
                    await self._poll()
            except _DRIFT as error:
                _log.warning("Serve's long poll is not as expected (%r): polling instead.", error)
                self.source = "poll"
            except (RayError, RayServeException, ValueError):  # not up yet, or restarting
                pass
            await asyncio.sleep(_RETRY_S)

    async def _long_poll(self) -> None:
        from ray.serve._private.common import DeploymentID
        from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
        from ray.serve._private.long_poll import LongPollNamespace, LongPollState

        controller = await asyncio.to_thread(
            ray.get_actor, SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE
        )
        deployment = DeploymentID(name=self._deployment, app_name=self._app)
        key = (LongPollNamespace.DEPLOYMENT_TARGETS, deployment)
        seen = -1
        while True:
            answer = await controller.listen_for_change.remote({key: seen})
            if answer == LongPollState.TIME_OUT:
                continue  # nothing changed within Serve's own time limit
            seen = answer[key].snapshot_id
            self._tell(
                {
                    replica.replica_id.unique_id: replica.replica_metadata
                    for replica in answer[key].object_snapshot.running_replicas
                }
            )

    async def _poll(self) -> None:
        """Ids from the names of Serve's replica actors, facts from any one of them: all alike."""
        prefix = f"SERVE_REPLICA::{self._app}#{self._deployment}#"
        handle = serve.get_deployment_handle(self._deployment, self._app)
        while True:
            actors = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
            ids = [a["name"].removeprefix(prefix) for a in actors if a["name"].startswith(prefix)]
            facts = await handle.record_replica_metadata.remote() if ids else {}
            self._tell(dict.fromkeys(ids, facts))
            await asyncio.sleep(_POLL_PERIOD_S)

    def _tell(self, replicas: Mapping[str, Mapping[str, Any]]) -> None:
        live = [
            ReplicaInfo(
                ReplicaId(uid),
                int(facts["page_size"]),
                int(facts["capacity_tokens"]),
                int(facts.get("step_tokens", 0)),
            )
            for uid, facts in sorted(replicas.items())
            if "page_size" in facts and "capacity_tokens" in facts  # else no engine of ours
        ]
        if live == self._known:
            return
        try:
            self._on_change(live)
        except Exception as error:  # else `run` would take it for one of Ray's
            raise InvariantError("the index could not follow Serve's live set") from error
        self._known = live
