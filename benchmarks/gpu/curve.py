"""The prefill curve t(cached, new), measured on an engine that does nothing else.

A chain extends one prompt in steps, so that each step is a prefill of new tokens behind cached
ones. Every repetition has tokens of its own: nothing but its chain's own beginning is cached.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.gpu.engine_run import EngineRun
from benchmarks.gpu.workload import Prompt
from cp_ray.core.prefill_curve import PrefillCurve, Sample, fit
from cp_ray.core.types import RequestId
from cp_ray.workers.prefill_times import CurveFile

SHORTEST = 1024
LONGEST = 131_072
REPEATED_TO = 16_384
"""Chains up to this length are repeated, longer ones run once: they cost most of the time."""
REPEATS = 3


class Chain(msgspec.Struct, frozen=True):
    """Lengths of one prompt as it grows, in tokens."""

    cuts: tuple[int, ...]

    def seconds(self, curve: PrefillCurve) -> float:
        """Time of the whole chain by a curve."""
        return sum(
            curve.seconds(before, after - before)
            for before, after in zip((0, *self.cuts), self.cuts, strict=False)
        )


def chains(longest: int, repeats: int = REPEATS) -> list[Chain]:
    """The shortest first. Each doubling is prefilled whole, and in steps down to a twentieth."""
    made = []
    total = SHORTEST
    while total <= longest:
        steps = tuple(total * part // 20 for part in (10, 15, 18, 19, 20))
        if total <= REPEATED_TO:
            made += [Chain((total,)), Chain(steps)] * repeats
        else:
            made.append(Chain(steps))
        total *= 2
    return made


def warm_up(engine: EngineRun, longest: int) -> None:
    """Compile and tune every kernel on prompts unlike any measured one."""
    for length in (17, 300, 1000, 2049, 4100, 9000, 17_000):
        if length < longest:
            engine.run([_prompt("warm up", length, length)], 1)
    several = [_prompt(f"warm up {n}", min(700 + 37 * n, longest - 8), n) for n in range(8)]
    engine.run(several, len(several), answer_tokens=2)
    engine.empty()


def measure(
    engine: EngineRun, wanted: Iterable[Chain], fits: Callable[[Chain], bool]
) -> tuple[list[Sample], int]:
    """Samples of the chains that fit the time left, and how many chains did not."""
    samples: list[Sample] = []
    skipped = 0
    for number, chain in enumerate(wanted):
        if not fits(chain):
            skipped += 1
            continue
        for cut in chain.cuts:
            [seen] = engine.run([_prompt(f"chain {number}", cut, cut)], 1)
            samples.append(Sample(seen.cached, seen.tokens - seen.cached, seen.ttft_s))
    return samples, skipped


def curve_file(engine: EngineRun, model: str, clock: str, samples: list[Sample]) -> CurveFile:
    """The data file of a measurement that just ended."""
    fitted = fit(samples)
    return CurveFile(
        device=engine.facts.device,
        model=model,
        versions=engine.facts.versions,
        date=datetime.now(UTC).date().isoformat(),
        command=f"python -m benchmarks.gpu {shlex.join(sys.argv[1:])}",
        clock=clock,
        load_average=os.getloadavg()[0],
        curve=fitted.curve,
        p90_relative_error=fitted.p90_relative_error,
        samples=tuple(samples),
    )


def write(file: Path, measured: CurveFile) -> None:
    """As indented JSON, a line for each sample."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(measured), indent=1).decode()
    file.write_text(text + "\n")


def _prompt(key: str, length: int, number: int) -> Prompt:
    return Prompt(RequestId(f"{key}/{number}"), ((key, length),))
