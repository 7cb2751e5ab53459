"""The faults of the chaos suite. Each is done to a running fleet under load and undone again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from tests.chaos.fleet import Fleet
from tests.chaos.load import Load, Sending

Excuse = Literal["none", "its streams", "its requests"]
"""What may break: nothing; streams that a killed replica had begun; all that a killed process had
under way."""
Do = Callable[[Fleet, random.Random], Awaitable[str]]
ENOUGH = 10
"""Answers to requests sent after a fault without which nothing is well again."""
Seen = Callable[[dict[str, Any], dict[str, Any], list[Sending]], bool]
"""Whether a fault is noticed: the index's state before and now, what clients saw since."""


class Fault(msgspec.Struct, frozen=True):
    """name: for the table. do: returns the replica that dies, or "". noticed: by whom, and how."""

    name: str
    do: Do
    excuse: Excuse
    noticed: Seen
    quick: bool = False


def _signal(kind: str, number: int, pause_s: float | None = None) -> Do:
    """Send a signal to one process of a kind; after a pause SIGCONT, if there is a pause."""

    async def do(fleet: Fleet, rng: random.Random) -> str:
        victim = rng.choice(await asyncio.to_thread(fleet.processes, kind))
        os.kill(victim.pid, number)
        if pause_s is not None:
            await asyncio.sleep(pause_s)
            os.kill(victim.pid, signal.SIGCONT)
        return ""

    return do


async def _redis_killed(fleet: Fleet, rng: random.Random) -> str:
    if fleet.server.pid is not None:
        os.kill(fleet.server.pid, signal.SIGKILL)
    await asyncio.sleep(3)
    await asyncio.to_thread(fleet.server.start)
    return ""


async def _redis_stopped(fleet: Fleet, rng: random.Random) -> str:
    pid = fleet.server.pid or 0
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(5)
    os.kill(pid, signal.SIGCONT)
    return ""


async def _redis_flushed(fleet: Fleet, rng: random.Random) -> str:
    with fleet.admin() as admin:
        await asyncio.to_thread(admin.flushall)
    return ""


async def _redis_slow(fleet: Fleet, rng: random.Random) -> str:
    fleet.proxy.delay_s = 0.3
    await asyncio.sleep(5)
    fleet.proxy.delay_s = 0.0
    return ""


async def _redis_full(fleet: Fleet, rng: random.Random) -> str:
    with fleet.admin() as admin:
        before = admin.config_get("maxmemory")["maxmemory"]
        admin.config_set("maxmemory", "1")
        await asyncio.sleep(5)
        admin.config_set("maxmemory", before)
    return ""


async def _password_rotated(fleet: Fleet, rng: random.Random) -> str:
    """Every connection breaks and none can be made, until the operator sets the old one again."""
    with fleet.admin() as admin:
        before = admin.config_get("requirepass")["requirepass"]
        admin.config_set("requirepass", "rotated")
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(5)
        admin.config_set("requirepass", before)
    return ""


async def _stream_trimmed(fleet: Fleet, rng: random.Random) -> str:
    """The index sleeps while evictions come, and wakes up to a stream that lacks them."""
    (victim,) = await asyncio.to_thread(fleet.processes, "index")
    os.kill(victim.pid, signal.SIGSTOP)
    await asyncio.sleep(4)
    with fleet.admin() as admin:
        await asyncio.to_thread(admin.xtrim, "cp:chaos:reports", 0, False)
    os.kill(victim.pid, signal.SIGCONT)
    return ""


def _replica_gone(before: dict[str, Any], now: dict[str, Any], seen: list[Sending]) -> bool:
    return bool(now) and not set(before["replicas"]) <= set(now["replicas"])


def _passed_through(before: dict[str, Any], now: dict[str, Any], seen: list[Sending]) -> bool:
    return any(sending.reason == "passthrough" for sending in seen)


def _broken(before: dict[str, Any], now: dict[str, Any], seen: list[Sending]) -> bool:
    return any(sending.error is not None for sending in seen)


def _counted(*names: str) -> Seen:
    def noticed(before: dict[str, Any], now: dict[str, Any], seen: list[Sending]) -> bool:
        then, later = before["counters"], now.get("counters", {})
        return any(later.get(name, 0) > then.get(name, 0) for name in names)

    return noticed


_REDIS = _counted("redis_faults", "journal_faults")
FAULTS = (
    Fault(
        "replica: kill -9", _signal("replica", signal.SIGKILL), "its streams", _replica_gone, True
    ),
    Fault("index: kill -9", _signal("index", signal.SIGKILL), "none", _passed_through, True),
    Fault("index: SIGSTOP 8 s", _signal("index", signal.SIGSTOP, 8), "none", _passed_through),
    Fault("ingress: kill -9", _signal("ingress", signal.SIGKILL), "its requests", _broken),
    Fault("ingress: SIGSTOP 3 s", _signal("ingress", signal.SIGSTOP, 3), "none", _broken),
    Fault("HTTP proxy: kill -9", _signal("proxy", signal.SIGKILL), "its requests", _broken),
    Fault("Redis: kill -9, empty after 3 s", _redis_killed, "none", _REDIS, True),
    Fault("Redis: SIGSTOP 5 s", _redis_stopped, "none", _REDIS),
    Fault("Redis: flushed", _redis_flushed, "none", _counted("reports_gap", "snapshots"), True),
    Fault("Redis: 300 ms late for 5 s", _redis_slow, "none", _REDIS),
    Fault("Redis: full for 5 s", _redis_full, "none", _REDIS),
    Fault("Redis: password rotated for 5 s", _password_rotated, "none", _REDIS),
    Fault("replica: SIGSTOP", _signal("replica", signal.SIGSTOP), "its streams", _replica_gone),
    Fault("stream trimmed past the reader", _stream_trimmed, "none", _counted("reports_gap")),
)


class Outcome(msgspec.Struct, frozen=True):
    """One row of the table. Times in seconds from the fault; None = never.

    sendings: under way or begun since. cut: those that the fault excuses. wrong: the others that
    failed. lost: requests never answered.
    """

    fault: str
    sendings: int
    passed_through: int
    cut: int
    wrong: tuple[str, ...]
    lost: int
    detected_s: float | None
    converged_s: float | None
    why_not: str

    @property
    def held(self) -> bool:
        """Whether the promises were kept."""
        return not self.wrong and not self.lost and self.converged_s is not None


async def suffer(
    fleet: Fleet, load: Load, fault: Fault, rng: random.Random, patience_s: float
) -> Outcome:
    """When all is well, do it under the running load, and watch until all is well again."""
    while not (await fleet.agreed())[0]:  # noqa: ASYNC110 - other processes bring it about
        await asyncio.sleep(0.2)
    before = await fleet.first_state()
    lost = len(load.lost)
    began_s = load.clock()
    watch = asyncio.create_task(_detection(fleet, load, fault, before, began_s, patience_s))
    await fault.do(fleet, rng)
    converged_s, why = None, ""
    while load.clock() - began_s < patience_s:
        agreed, why = await fleet.agreed()
        answered = [s for s in load.log if s.from_s > began_s and s.error is None]
        if agreed and len(answered) < ENOUGH:
            why = f"{len(answered)} answers since"
        elif agreed:
            converged_s = load.clock() - began_s
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    watch.cancel()
    detected = watch.result() if watch.done() and not watch.cancelled() else None
    seen = load.since(began_s)
    failed = [sending for sending in seen if sending.error is not None]
    cut = [sending for sending in failed if _excused(fault, sending)]
    return Outcome(
        fault=fault.name,
        sendings=len(seen),
        passed_through=sum(sending.reason == "passthrough" for sending in seen),
        cut=len(cut),
        wrong=tuple(f"{s.to_s - began_s:.1f} s: {s.error}" for s in failed if s not in cut),
        lost=len(load.lost) - lost,
        detected_s=detected,
        converged_s=converged_s,
        why_not="" if converged_s is not None else why,
    )


def _excused(fault: Fault, sending: Sending) -> bool:
    if fault.excuse == "its streams":
        return sending.streamed and sending.started
    return fault.excuse == "its requests"


async def _detection(
    fleet: Fleet,
    load: Load,
    fault: Fault,
    before: dict[str, Any],
    began_s: float,
    patience_s: float,
) -> float | None:
    while load.clock() - began_s < patience_s:
        if fault.noticed(before, await fleet.state(), load.since(began_s)):
            return load.clock() - began_s
        await asyncio.sleep(0.1)
    return None
