"""Runs the shapes one after the other, each engine in a process of its own, within one time limit.

A process of its own frees the GPU's memory for the next shape, survives a kernel that kills it,
and can be tried again with a plainer set-up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.gpu.budget import Budget, Fixed, Task, schedule
from benchmarks.gpu.cells import AGENDAS
from benchmarks.gpu.engine_run import SETUPS
from benchmarks.gpu.results import load
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.table import COLUMNS, IN_FLIGHT_COLUMNS, cell_rows, in_flight_row, markdown
from benchmarks.gpu.tasks import assumed_capacity, assumed_curve, tasks_of
from benchmarks.gpu.workload import Kit
from cp_ray.core.prefill_curve import fit

READY = "ready in"
"""A started engine says so; a process that ends without has a set-up that does not work."""
ON_GPU = [name for name in AGENDAS if name != "tiny"]
GPU_PAGE = 16
KILL_S = 10.0
READY_S = 240.0
"""A GPU's engine that is not ready by then hangs."""


class RunOptions(msgspec.Struct, frozen=True):
    """seconds: for this command, from its start."""

    kit: Path
    out: Path
    shapes: tuple[str, ...]
    device: str
    seconds: float


def budget_of(kit: Kit, out: Path, shapes: Sequence[str], fixed: Fixed, slot_s: float) -> Budget:
    """The plan of a slot for what is not measured yet, with the measured curve if there is one."""
    tasks: list[Task] = []
    done: set[str] = set()
    for name in shapes:
        results = load(out, name)
        shape = SHAPES[name]
        curve = fit(results.samples).curve if results.samples else assumed_curve(shape)
        capacity = 16_384 if name == "tiny" else assumed_capacity(shape)
        tasks += tasks_of(kit, name, curve, capacity, GPU_PAGE)
        done.update(results.done)
    return schedule(tasks, fixed, slot_s, done)


def run(options: RunOptions, say: Callable[[str], None]) -> int:
    """Measure what fits, print the table; the exit status: 0 if every shape's engine worked."""
    deadline = time.monotonic() + options.seconds
    fixed = Fixed(machine_s=0.0, unpack_s=0.0, reserve_s=15.0)
    planned = budget_of(Kit(options.kit), options.out, options.shapes, fixed, options.seconds)
    say(budget_text(planned))
    status = 0
    setup = 0
    for place, shape in enumerate(options.shapes):
        if all(line.task.shape != shape for line in planned.lines):
            say(f"{shape}: all of it is measured; name another --out to measure it again")
            continue
        left = deadline - time.monotonic() - fixed.reserve_s
        share = planned.seconds(shape, fixed)
        last = place == len(options.shapes) - 1
        seconds = left if last else min(left, share * 1.1)
        if seconds < fixed.start_s / 2:
            say(f"{shape}: no time left to start it")
            continue
        found = _with_a_setup_that_works(options, shape, seconds, setup, say)
        if found is None:
            say(f"{shape}: no set-up works")
            status = 1
        else:
            setup = found
    text = report(options.out, options.shapes)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text(text + "\n")
    say(text)
    return status


def report(out: Path, shapes: Sequence[str]) -> str:
    """Every measured cell and order of dispatch, of all runs into this folder."""
    results = [load(out, shape) for shape in shapes]
    parts = [markdown(COLUMNS, [line for one in results for line in cell_rows(one)])]
    in_flight = [in_flight_row(one) for found in results for one in found.in_flight.values()]
    if in_flight:
        parts.append(markdown(IN_FLIGHT_COLUMNS, in_flight))
    parts += [
        f"{one.shape}: prefill curve {fitted.curve}, 9 of 10 samples within "
        f"{fitted.p90_relative_error:.1%}"
        for one in results
        if one.samples
        for fitted in [fit(one.samples)]
    ]
    return "\n\n".join(parts)


def budget_text(budget: Budget) -> str:
    """The plan as a table."""
    lines = [
        [
            line.task.name.removesuffix(".jsonl.gz"),
            f"{line.task.seconds:.0f}",
            "next slot" if line.ends_s is None else f"{line.ends_s:.0f}",
        ]
        for line in budget.lines
    ]
    table = markdown(("task, best first", "seconds", "ends at"), lines)
    return f"{table}\n{budget.left_s:.0f} of {budget.slot_s:.0f} s left"


def _with_a_setup_that_works(
    options: RunOptions, shape: str, seconds: float, setup: int, say: Callable[[str], None]
) -> int | None:
    deadline = time.monotonic() + seconds
    for tried in range(setup, 1 if options.device == "cpu" else len(SETUPS)):
        left = deadline - time.monotonic()
        if left < 30:
            return None
        if _child(options, shape, left, tried, say):
            return tried
        say(f"{shape}: set-up {tried} does not work")
    return None


def _child(
    options: RunOptions, shape: str, seconds: float, setup: int, say: Callable[[str], None]
) -> bool:
    """Whether the engine became ready. What it measured is saved task by task."""
    command = [sys.executable, "-m", "benchmarks.gpu", "shape", "--shape", shape]
    command += ["--kit", str(options.kit), "--out", str(options.out), "--device", options.device]
    command += ["--seconds", f"{seconds:.1f}", "--setup", str(setup)]
    ready = False
    began = time.monotonic()
    with subprocess.Popen(
        ["timeout", "-k", "5", f"{seconds + KILL_S:.0f}", *command],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, PYTHONUNBUFFERED="1"),
    ) as child:
        assert child.stdout is not None
        patience = READY_S if options.device == "cuda" else seconds
        hangs = threading.Timer(patience, child.terminate)
        hangs.start()
        for line in child.stdout:
            if READY in line:
                ready = True
                hangs.cancel()
            say(line.rstrip())
        hangs.cancel()
    say(f"{shape}: process ended with {child.returncode} after {time.monotonic() - began:.0f} s")
    return ready
