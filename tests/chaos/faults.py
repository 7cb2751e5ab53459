"""The faults of the chaos suite. Each is done to a running fleet under load and undone again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
import psutil

from tests.chaos.fleet import Fleet
from tests.chaos.load import Sending

Excuse = Literal["none", "its streams", "its requests", "the port"]
"""What may break: nothing; streams that a killed replica had begun; all that a killed ingress had
under way; that, and new connections, where the port's only process was killed."""
Do = Callable[[Fleet, random.Random], Awaitable[Excuse | None]]
Seen = Callable[[dict[str, Any], dict[str, Any], list[Sending]], bool]
"""Whether a fault is noticed: the index's state before and now, what clients saw since."""


class Fault(msgspec.Struct, frozen=True):
    """name: for the table. do: returns the excuse, where only the victim shows which it is.

    noticed: by whom, and how. quick: one of the 3 minutes in `make test`. hidden: nothing of it is
    seen at first, so that nothing is well before it was noticed.
    """

    name: str
    do: Do
    excuse: Excuse
    noticed: Seen
    quick: bool = False
    hidden: bool = False


def _signal(kind: str, number: int, pause_s: float | None = None) -> Do:
    """Send a signal to one process of a kind; after a pause SIGCONT, if there is a pause."""

    async def do(fleet: Fleet, rng: random.Random) -> None:
        victim = rng.choice(await asyncio.to_thread(fleet.processes, kind))
        os.kill(victim.pid, number)
        if pause_s is not None:
            await asyncio.sleep(pause_s)
            os.kill(victim.pid, signal.SIGCONT)

    return do


async def _redis_killed(fleet: Fleet, rng: random.Random) -> None:
    if fleet.server.pid is not None:
        os.kill(fleet.server.pid, signal.SIGKILL)
    await asyncio.sleep(3)
    await asyncio.to_thread(fleet.server.start)


async def _redis_stopped(fleet: Fleet, rng: random.Random) -> None:
    pid = fleet.server.pid or 0
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(5)
    os.kill(pid, signal.SIGCONT)


async def _redis_flushed(fleet: Fleet, rng: random.Random) -> None:
    with fleet.admin() as admin:
        await asyncio.to_thread(admin.flushall)


async def _redis_slow(fleet: Fleet, rng: random.Random) -> None:
    fleet.proxy.delay_s = 0.3
    await asyncio.sleep(5)
    fleet.proxy.delay_s = 0.0


async def _redis_full(fleet: Fleet, rng: random.Random) -> None:
    with fleet.admin() as admin:
        before = admin.config_get("maxmemory")["maxmemory"]
        admin.config_set("maxmemory", "1")
        await asyncio.sleep(5)
        admin.config_set("maxmemory", before)


async def _password_rotated(fleet: Fleet, rng: random.Random) -> None:
    """Every connection breaks and none can be made, until the operator sets the old one again."""
    with fleet.admin() as admin:
        before = admin.config_get("requirepass")["requirepass"]
        admin.config_set("requirepass", "rotated")
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(5)
        admin.config_set("requirepass", before)


async def _host_killed(fleet: Fleet, rng: random.Random) -> Excuse:
    """The host that has most replicas; it stays away."""

    def count(kind: str, processes: list[psutil.Process]) -> int:
        of_kind = {process.pid for process in fleet.processes(kind)}
        return sum(process.pid in of_kind for process in processes)

    def kill() -> Excuse:
        workers = fleet.hosts.workers()
        node, processes = max(workers, key=lambda worker: count("replica", worker[1]))
        assert count("replica", processes), "the host has a replica to lose"
        excuse: Excuse = "its requests" if count("ingress", processes) else "its streams"
        fleet.hosts.kill(node, processes)
        return excuse

    return await asyncio.to_thread(kill)


async def _control_service_killed(fleet: Fleet, rng: random.Random) -> None:
    await asyncio.to_thread(fleet.hosts.stop_control_service)
    await asyncio.sleep(3)
    await asyncio.to_thread(fleet.hosts.start_control_service)


def _clock(kind: str, ahead_s: float) -> Do:
    """The wall clock of one process jumps, and jumps back after 5 s."""

    async def do(fleet: Fleet, rng: random.Random) -> None:
        victim = rng.choice(await asyncio.to_thread(fleet.processes, kind))
        fleet.set_clock(victim, ahead_s)
        await asyncio.sleep(5)
        fleet.set_clock(victim, 0.0)

    return do


async def _engine_hung(fleet: Fleet, rng: random.Random) -> None:
    """The engine does nothing more; its replica lives, and reports."""
    victim = rng.choice(await asyncio.to_thread(fleet.processes, "replica"))
    fleet.hang(victim)


async def _stream_trimmed(fleet: Fleet, rng: random.Random) -> None:
    """The index sleeps while evictions come, and wakes up to a stream that lacks them."""
    (victim,) = await asyncio.to_thread(fleet.processes, "index")
    os.kill(victim.pid, signal.SIGSTOP)
    await asyncio.sleep(4)
    with fleet.admin() as admin:
        await asyncio.to_thread(admin.xtrim, "cp:chaos:reports", 0, False)
    os.kill(victim.pid, signal.SIGCONT)


def _replica_gone(before: dict[str, Any], now: dict[str, Any], seen: list[Sending]) -> bool:
    return bool(now) and not set(before["replicas"]) <= set(now["replicas"])


def _passed_through(before: dict[str, Any], now: dict[str, Any], seen: list[Sending]) -> bool:
    return any(sending.reason == "passthrough" for sending in seen)


def _broken(before: dict[str, Any], now: dict[str, Any], seen: list[Sending]) -> bool:
    return any(sending.error is not None for sending in seen)


def _lags(before: dict[str, Any], now: dict[str, Any], seen: list[Sending]) -> bool:
    """Reports look an hour old: the jump has come, and nothing but the metric minds it."""
    return float(now.get("report_lag_s", 0.0)) > 1000


def _sent_elsewhere(before: dict[str, Any], now: dict[str, Any], seen: list[Sending]) -> bool:
    """A request that its planned replica would have kept waiting."""
    return any(sending.reason == "spill" for sending in seen)


def _counted(*names: str) -> Seen:
    def noticed(before: dict[str, Any], now: dict[str, Any], seen: list[Sending]) -> bool:
        then, later = before["counters"], now.get("counters", {})
        return any(later.get(name, 0) > then.get(name, 0) for name in names)

    return noticed


_REDIS = _counted("redis_faults", "journal_faults")
_STOP = _signal("replica", signal.SIGSTOP)
FAULTS = (
    Fault(
        "replica: kill -9", _signal("replica", signal.SIGKILL), "its streams", _replica_gone, True
    ),
    Fault("index: kill -9", _signal("index", signal.SIGKILL), "none", _passed_through, True),
    Fault("index: SIGSTOP 8 s", _signal("index", signal.SIGSTOP, 8), "none", _passed_through),
    Fault("ingress: kill -9", _signal("ingress", signal.SIGKILL), "its requests", _broken),
    Fault("ingress: SIGSTOP 3 s", _signal("ingress", signal.SIGSTOP, 3), "none", _broken),
    Fault("HTTP proxy: SIGSTOP 3 s", _signal("proxy", signal.SIGSTOP, 3), "none", _broken),
    Fault("HTTP proxy: kill -9", _signal("proxy", signal.SIGKILL), "the port", _broken),
    Fault("Redis: kill -9, empty after 3 s", _redis_killed, "none", _REDIS, True),
    Fault("Redis: SIGSTOP 5 s", _redis_stopped, "none", _REDIS),
    Fault("Redis: flushed", _redis_flushed, "none", _counted("reports_gap", "snapshots"), True),
    Fault("Redis: 300 ms late for 5 s", _redis_slow, "none", _REDIS),
    Fault("Redis: full for 5 s", _redis_full, "none", _REDIS),
    Fault("Redis: password rotated for 5 s", _password_rotated, "none", _REDIS),
    Fault(
        "Redis: stream trimmed before it is read", _stream_trimmed, "none", _counted("reports_gap")
    ),
    Fault("index: clock 1 h ahead for 5 s", _clock("index", 3600), "none", _lags),
    Fault("index: clock 1 h behind for 5 s", _clock("index", -3600), "none", _passed_through),
    Fault("ingress: clock 1 h ahead for 5 s", _clock("ingress", 3600), "none", _passed_through),
    Fault("ingress: clock 1 h behind for 5 s", _clock("ingress", -3600), "none", _passed_through),
    Fault("replica: clock 1 h behind for 5 s", _clock("replica", -3600), "none", _passed_through),
    Fault("replica: SIGSTOP, for good", _STOP, "its streams", _sent_elsewhere),
    Fault(
        "engine: hangs in a living replica",
        _engine_hung,
        "its streams",
        _replica_gone,
        hidden=True,
    ),
    Fault("control service: kill -9 for 3 s", _control_service_killed, "none", _broken),
    Fault("host: kill -9 of all of it", _host_killed, "its streams", _replica_gone),
)
