"""One engine process: every task of one shape that the time left has room for, best first."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.gpu import curve as curves
from benchmarks.gpu.budget import Task
from benchmarks.gpu.cells import AS_RETRIEVED, Cell
from benchmarks.gpu.engine_run import Clock, EngineOptions, EngineRun
from benchmarks.gpu.in_flight import run_trial
from benchmarks.gpu.results import CellResult, load, save
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.table import in_flight_row, row
from benchmarks.gpu.tasks import (
    assumed_curve,
    cell_seconds,
    chains_of,
    tasks_of,
    trials_of,
    workload_of,
)
from benchmarks.gpu.workload import UNCACHED, Kit
from cp_ray.core.prefill_curve import PrefillCurve, fit

CPU_TOKENS = 16_384
"""Longest prompt, and cache, of a CPU engine."""
CPU_BLOCK = 32


class ShapeOptions(msgspec.Struct, frozen=True):
    """What to run. seconds: until the last task has to have ended."""

    kit: Path
    out: Path
    shape: str
    device: Literal["cuda", "cpu"]
    seconds: float
    setup: int = 0


def run_shape(options: ShapeOptions, say: Callable[[str], None]) -> None:
    """Start the engine, run tasks, save after each one."""
    _Shape(options, say).run()


class _Shape:
    def __init__(self, options: ShapeOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._deadline = time.monotonic() + options.seconds
        self._kit = Kit(options.kit)
        self._results = load(options.out, options.shape)
        self._engine = EngineRun(_engine_options(options))
        facts = self._engine.facts
        say(
            f"{options.shape}: ready in {facts.start_s:.0f} s on {facts.device}, set-up "
            f"{facts.setup}, {facts.capacity_tokens:,} tokens of cache in blocks of "
            f"{facts.block_size}, asynchronous scheduling {facts.async_scheduling}, "
            f"{facts.versions}"
        )
        self._slower = 1.0
        """What the last task took of its estimate, if more: its successors may as well."""

    def run(self) -> None:
        shape = self._options.shape
        began = time.monotonic()
        longest = CPU_TOKENS // 8 if self._options.device == "cpu" else curves.LONGEST
        curves.warm_up(self._engine, longest)
        self._say(f"{shape}: warm after {time.monotonic() - began:.1f} s")
        facts = self._engine.facts
        tasks = tasks_of(self._kit, shape, self._curve(), facts.capacity_tokens, facts.block_size)
        self._results.skipped = []
        for task in sorted(tasks, key=lambda one: one.worth):
            if task.name in self._results.done:
                continue
            if not self._worth_it(task):
                self._results.skipped.append(task.name)
                continue
            started = time.monotonic()
            estimate = self._estimate(task)
            whole = self._do(task, estimate)
            took = time.monotonic() - started
            self._slower = max(1.0, took / max(estimate, 1.0))
            if whole:
                self._results.done.append(task.name)
            else:
                self._results.skipped.append(task.name)
            save(self._options.out, self._results)
        save(self._options.out, self._results)
        if self._results.skipped:
            self._say(f"{shape}: no time for {', '.join(self._results.skipped)}")

    def _curve(self) -> PrefillCurve:
        if self._results.samples:
            return fit(self._results.samples).curve
        return assumed_curve(SHAPES[self._options.shape])

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _worth_it(self, task: Task) -> bool:
        if task.kind == "curve":
            return self._left() > 0  # its chains look for themselves
        if task.cell is not None and task.cell.policy not in (AS_RETRIEVED, UNCACHED):
            beside = task.cell.beside(AS_RETRIEVED).key in self._results.cells
            return beside and self._estimate(task) <= self._left()
        return self._estimate(task) <= self._left()

    def _estimate(self, task: Task) -> float:
        if task.cell is not None:
            facts = self._engine.facts
            workload = workload_of(self._kit, task.cell, facts.capacity_tokens, facts.block_size)
            return cell_seconds(workload, self._curve()) * self._slower
        if task.kind == "in flight":
            curve = self._curve()
            return sum(trial.seconds(curve) for trial in trials_of(task.shape)) * self._slower
        return task.seconds

    def _do(self, task: Task, estimate: float) -> bool:
        """Whether all of it was measured."""
        if task.cell is not None:
            self._cell(task.cell, estimate)
            return True
        if task.kind == "in flight":
            for trial in trials_of(task.shape):
                result = run_trial(self._engine, trial)
                self._results.in_flight[result.key] = result
                self._say("in flight | " + " | ".join(in_flight_row(result)))
            return True
        return self._measure_curve(long=task.name.endswith("long curve"))

    def _measure_curve(self, *, long: bool) -> bool:
        self._engine.empty()
        curve = self._curve()
        samples, skipped = curves.measure(
            self._engine,
            chains_of(self._options.shape, long),
            lambda chain: chain.seconds(curve) <= self._left(),
        )
        self._results.samples += samples
        if self._results.samples:
            shape = self._options.shape
            model = f"Qwen3 of {shape} shape, random weights"
            made = curves.curve_file(
                self._engine, model, _clock(self._options), self._results.samples
            )
            curves.write(self._options.out / f"curve-{self._options.device}-{shape}.json", made)
            self._say(
                f"{shape}: {len(self._results.samples)} samples up to {made.longest} tokens, "
                f"{made.curve}, 9 of 10 within {made.p90_relative_error:.1%}; "
                f"{skipped} chains skipped"
            )
        return skipped == 0

    def _cell(self, cell: Cell, estimate: float) -> None:
        facts = self._engine.facts
        workload = workload_of(self._kit, cell, facts.capacity_tokens, facts.block_size)
        room = self._engine.empty(cell.cache_tokens)
        apart = cell.policy == UNCACHED
        began = time.monotonic()
        records = self._engine.run(
            workload.prompts, cell.concurrency, salting="apart" if apart else "shared"
        )
        result = CellResult(
            cell=cell,
            date=datetime.now(UTC).date().isoformat(),
            facts=facts,
            capacity_tokens=room,
            block_tokens=workload.block_tokens,
            predicted=workload.predicted,
            reuse_hit=workload.reuse_hit,
            estimated_s=estimate,
            wall_s=time.monotonic() - began,
            requests=tuple(records),
        )
        self._results.cells[cell.key] = result
        beside = self._results.cells.get(cell.beside(AS_RETRIEVED).key)
        self._say(" | ".join(row(result, beside)))


def _clock(options: ShapeOptions) -> Clock:
    """A CPU that runs tests runs other things, too."""
    return "cpu" if options.device == "cpu" else "wall"


def _engine_options(options: ShapeOptions) -> EngineOptions:
    shape = SHAPES[options.shape]
    on_cpu = options.device == "cpu"
    longest = CPU_TOKENS if on_cpu else curves.LONGEST + 64
    folder = Path(tempfile.gettempdir()) / "cp_ray_gpu_models"
    return EngineOptions(
        model=str(shape.write(longest, folder)),
        vocab=shape.vocab,
        device=options.device,
        max_tokens=longest,
        setup=options.setup,
        clock=_clock(options),
        step_tokens=2048 if on_cpu else 8192,
        blocks=CPU_TOKENS // CPU_BLOCK + 1 if on_cpu else None,
        # fp32 on CPU: twice the bytes; two blocks more than are used.
        cache_bytes=2 * shape.cache_bytes_per_token * (CPU_TOKENS + 2 * CPU_BLOCK)
        if on_cpu
        else None,
    )
