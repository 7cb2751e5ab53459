"""Find the processes of one running application, kill one with SIGKILL, and time its return.

Only processes under our own host are looked at, so no other Ray on the machine is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec
import psutil

from cp_ray.demo.arms import Running

TARGETS = {
    "replica": "ray::ServeReplica:cp:Engine",
    "index": "ray::IndexActor",
    "redis": "valkey-server",
}
"""What is killed -> how its processes are called (Ray names the processes of its actors)."""
POLL_S = 0.1


class Kill(msgspec.Struct, frozen=True):
    """One kill. at_s: on the run's clock. recovered_s: until it was back; None = never.

    A replica is back when a new one has answered, the others when their process runs again.
    orphans: processes that the killed one left behind and that did not end by themselves.
    """

    target: str
    pid: int
    at_s: float
    recovered_s: float | None
    orphans: int


def find(app: Running, target: str) -> list[psutil.Process]:
    """Living processes of one kind, by pid."""
    found = []
    for process in app.processes():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            named = bool(words) and TARGETS[target] in words[0]
            if named and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


class Watch(Protocol):
    """What the client sees meanwhile."""

    def clock(self) -> float:
        """Seconds since the load began."""

    def new_replica_since(self, at_s: float) -> bool:
        """Whether a replica that never answered before `at_s` has answered since."""


async def kill_one(
    app: Running, target: str, rng: random.Random, watch: Watch, patience_s: float
) -> Kill:
    """Kill a random process of a kind, and wait until a new one has taken its place."""
    before = await asyncio.to_thread(find, app, target)
    if not before:
        return Kill(target, 0, watch.clock(), None, 0)
    victim = rng.choice(before)
    left_behind = victim.children(recursive=True)
    at_s = watch.clock()
    victim.kill()
    recovered = None
    deadline = time.monotonic() + patience_s
    old = {process.pid for process in before}
    while recovered is None and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        now = await asyncio.to_thread(find, app, target)
        runs = len(now) >= len(before) and {process.pid for process in now} - old
        if runs and (target != "replica" or watch.new_replica_since(at_s)):
            recovered = watch.clock() - at_s
    return Kill(target, victim.pid, at_s, recovered, await asyncio.to_thread(_end, left_behind))


def _end(processes: Sequence[psutil.Process]) -> int:
    """Number of processes still alive, which are ended: nothing of ours may be left running."""
    _, alive = psutil.wait_procs(list(processes), timeout=10)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return len(alive)
