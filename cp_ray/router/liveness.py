"""Whether a replica that keeps callers waiting still runs: its process is asked, not its engine.

A long prefill and a stopped process look alike from outside, and Serve needs up to three times
`health_check_timeout_s` to tell them apart. Serve's own thread in the replica answers at once
however busy the engine is, so silence there means a process that is stopped, or a host that is
gone without a word.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle

ANSWER_S = 10.0
"""At most: longer than the interpreter's lock is ever held by what loads or compiles."""
LEFT_OUT_S = 5.0
"""How long a replica is avoided that said itself that its engine is gone: Serve replaces it."""
_NAMESPACE = "serve"
"""Serve's, where its replicas are named actors."""


class Liveness:
    """Owner of what is known of one deployment's replicas; one event loop uses it.

    ask_after_s: how long a replica may keep a caller waiting before it is asked, and asked again.
    answer_s: how long it has for its answer.
    """

    def __init__(
        self, handle: DeploymentHandle, *, ask_after_s: float = 2.0, answer_s: float = ANSWER_S
    ) -> None:
        self._prefix = f"SERVE_REPLICA::{handle.app_name}#{handle.deployment_name}#"
        self._answer_s = min(answer_s, ANSWER_S)
        self._asking: dict[str, asyncio.Task[bool]] = {}
        self._stopped: dict[str, asyncio.Future[None]] = {}
        self.ask_after_s = ask_after_s

    @property
    def stopped(self) -> frozenset[str]:
        """Unique ids of replicas that owe an answer for too long, or whose engine is gone."""
        return frozenset(self._stopped)

    def leave_out(self, replica: str) -> None:
        """Its engine is gone: avoid it for a while."""
        if replica not in self._stopped:
            left_out = asyncio.ensure_future(asyncio.sleep(LEFT_OUT_S))
            self._stopped[replica] = left_out
            left_out.add_done_callback(lambda _: self._stopped.pop(replica, None))

    async def is_stopped(self, replica: str) -> bool:
        """Ask it. All who wait for one replica share one question."""
        if replica in self._stopped:
            return True
        asking = self._asking.get(replica)
        if asking is None:
            asking = self._asking[replica] = asyncio.create_task(self._ask(replica))
            asking.add_done_callback(lambda _: self._asking.pop(replica, None))
        return await asyncio.shield(asking)

    async def _ask(self, replica: str) -> bool:
        try:
            async with asyncio.timeout(self._answer_s):
                actor = await asyncio.to_thread(ray.get_actor, self._prefix + replica, _NAMESPACE)
        except (ValueError, TimeoutError, RayError):  # no such actor; or no control service
            return False  # then its callers get Ray's own error
        answer = asyncio.ensure_future(_answer(actor))
        done, _ = await asyncio.wait({answer}, timeout=self._answer_s)
        if done:
            return False
        # It is avoided until it does answer, or is dead.
        self._stopped[replica] = answer
        answer.add_done_callback(lambda _: self._stopped.pop(replica, None))
        return True


async def _answer(actor: Any) -> None:
    try:
        await actor.get_num_ongoing_requests.remote()
    except RayError:
        return  # it died: its callers hear that, too
