"""One fault from beginning to end: what clients saw, and when all was as before."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec

from tests.chaos.faults import Excuse, Fault
from tests.chaos.fleet import Fleet
from tests.chaos.load import Load, Sending

ENOUGH = 10
"""Answers to requests sent after a fault without which nothing is well again."""
LONGEST_S = 5.0
"""A request under way for longer than this waits for something that is not well yet."""
PLANNED = 5
"""So many last answers must have been planned: nothing passes through any more."""


class Outcome(msgspec.Struct, frozen=True):
    """One row of the table. Times in seconds from the fault; None = never.

    sendings: under way or begun since. cut: those that broke and that the fault excuses. refused:
    found the port closed, where the fault excuses that. wrong: the others that failed. lost:
    requests never answered. slowest_s: the longest that one sending took, plain ones apart.
    """

    fault: str
    sendings: int
    passed_through: int
    cut: int
    refused: int
    wrong: tuple[str, ...]
    lost: int
    slowest_s: float
    slowest_plain_s: float
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
    asked_s = load.clock()
    while not (well := await fleet.agreed())[0]:
        assert load.clock() - asked_s < 2 * patience_s, f"not well before {fault.name}: {well[1]}"
        await asyncio.sleep(0.2)
    before = await fleet.first_state()
    lost = len(load.lost)
    began_s = load.clock()
    watch = asyncio.create_task(_detection(fleet, load, fault, before, began_s, patience_s))
    excuse = await fault.do(fleet, rng) or fault.excuse
    converged_s, why = None, ""
    while load.clock() - began_s < patience_s:
        agreed, why = await fleet.agreed()
        if agreed:
            why = _not_yet(load, began_s)
        if fault.hidden and not watch.done():
            why = "not noticed yet"
        if agreed and not why:
            converged_s = load.clock() - began_s
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    watch.cancel()
    detected = watch.result() if watch.done() and not watch.cancelled() else None
    seen = load.since(began_s)
    failed = [sending for sending in seen if sending.error is not None]
    excused = [sending for sending in failed if _excused(excuse, sending)]
    return Outcome(
        fault=fault.name,
        sendings=len(seen),
        passed_through=sum(sending.reason == "passthrough" for sending in seen),
        cut=sum(not sending.refused for sending in excused),
        refused=sum(sending.refused for sending in excused),
        wrong=tuple(f"{s.to_s - began_s:.1f} s: {s.error}" for s in failed if s not in excused),
        lost=len(load.lost) - lost,
        slowest_s=_slowest(seen, plain=False),
        slowest_plain_s=_slowest(seen, plain=True),
        detected_s=detected,
        converged_s=converged_s,
        why_not="" if converged_s is not None else why,
    )


def _slowest(seen: list[Sending], *, plain: bool) -> float:
    return max((s.to_s - s.from_s for s in seen if s.plain is plain), default=0.0)


def _not_yet(load: Load, began_s: float) -> str:
    """What clients still miss; "" when nothing."""
    answered = [s for s in load.log if s.from_s > began_s and s.error is None and not s.plain]
    if len(answered) < ENOUGH:
        return f"{len(answered)} answers since"
    if load.longest_wait_s() > LONGEST_S:
        return f"a request has waited for {load.longest_wait_s():.1f} s"
    unplanned = sum(sending.reason == "passthrough" for sending in answered[-PLANNED:])
    return f"{unplanned} of the last {PLANNED} answers were not planned" if unplanned else ""


def _excused(excuse: Excuse, sending: Sending) -> bool:
    if sending.refused:
        return excuse == "the port"
    if excuse == "its streams":
        return sending.streamed and sending.started
    return excuse != "none"


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
