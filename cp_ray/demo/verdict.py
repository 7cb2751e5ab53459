"""The verdict of `make demo-chaos`: the client's own log against the list of kills. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cp_ray.demo.kills import Kill
from cp_ray.demo.measure import Record


class Attempt(msgspec.Struct, frozen=True):
    """One sending of one request, on the run's clock. error: None for a whole answer."""

    streamed: bool
    from_s: float
    to_s: float
    started: bool
    error: str | None


class Verdict(msgspec.Struct, frozen=True):
    """cut: streams that a replica's death excuses. faults: one line for all that must not be."""

    requests: int
    answered: int
    cut: int
    faults: tuple[str, ...]


def judge(records: Sequence[Record], attempts: Sequence[Attempt], kills: Sequence[Kill]) -> Verdict:
    """Compare the client's log with the kills."""
    dead = [kill.at_s for kill in kills if kill.target == "replica"]
    faults = [] if records else ["no request was sent"]
    cut = 0
    for attempt in attempts:
        if attempt.error is None:
            continue
        killed = any(attempt.from_s <= at_s <= attempt.to_s for at_s in dead)
        if attempt.streamed and attempt.started and killed:
            cut += 1
            continue
        kind = "a stream" if attempt.streamed else "an answer"
        state = "after its first token" if attempt.started else "before its first token"
        faults.append(f"{attempt.to_s:.1f} s: {kind} failed {state}: {attempt.error}")
    answered = [record.name for record in records if record.answer is not None]
    faults += [f"{r.name} was never answered: {r.error}" for r in records if r.answer is None]
    if len(set(answered)) != len(answered):
        faults.append("a request was answered more than once")
    for kill in kills:
        if kill.recovered_s is None:
            faults.append(f"{kill.target} (pid {kill.pid}) did not come back")
        if kill.orphans:
            faults.append(f"{kill.target} (pid {kill.pid}) left {kill.orphans} processes behind")
    return Verdict(len(records), len(answered), cut, tuple(faults))
