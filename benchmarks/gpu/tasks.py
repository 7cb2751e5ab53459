"""Everything there is to measure of a shape, with its worth and its estimated time."""

from __future__ import annotations

import functools

from benchmarks.gpu import curve as curves
from benchmarks.gpu import in_flight
from benchmarks.gpu.budget import Task
from benchmarks.gpu.cells import AGENDAS, Cell
from benchmarks.gpu.curve import Chain
from benchmarks.gpu.in_flight import Trial
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.workload import Kit, Workload
from cp_ray.core.prefill_curve import PrefillCurve

FLOP_PER_S = 600e12
"""Assumed of an H200 in a whole model: three quarters of what a large bf16 product reaches."""
STEP_S = 0.02
"""Assumed: the fixed part of one prefill, launches included."""
MEMORY_BYTES = 143_771 << 20
MEMORY_SHARE = 0.9
WORKING_BYTES = 4 << 30
"""An H200's memory, vLLM's share of it, and what a step of 8,192 tokens needs beside weights."""
LONGEST_SHORT = 32_768
"""Chains up to here are the curve that the budget needs; the rest is a task of its own."""
OVERHEAD_S = 1.0
"""Making a cell's tokens, and emptying the cache."""


def assumed_curve(shape: Shape) -> PrefillCurve:
    """Before anything is measured: from FLOP counts."""
    if shape.name == "tiny":
        return PrefillCurve(0.003, 5e-5, 0.0, 1e-9)
    return shape.curve_at(FLOP_PER_S, STEP_S)


def assumed_capacity(shape: Shape) -> int:
    """Tokens of an uncapped cache on an H200."""
    free = MEMORY_BYTES * MEMORY_SHARE - shape.weight_bytes - WORKING_BYTES
    return int(free / shape.cache_bytes_per_token)


def room_of(cell: Cell, capacity_tokens: int) -> int:
    """The cache a cell gets on an engine of this capacity."""
    return capacity_tokens if cell.cache_tokens is None else min(cell.cache_tokens, capacity_tokens)


@functools.cache
def workload_of(kit: Kit, cell: Cell, capacity_tokens: int, page_size: int) -> Workload:
    """A cell's prompts, made once for estimate and run."""
    return kit.workload(
        cell.policy,
        requests=cell.requests,
        concurrency=cell.concurrency,
        capacity_tokens=room_of(cell, capacity_tokens),
        page_size=page_size,
    )


def cell_seconds(workload: Workload, curve: PrefillCurve) -> float:
    """Estimate of a run: prefills follow each other, so their times add up."""
    return OVERHEAD_S + sum(
        curve.seconds(cached, prompt.tokens - cached)
        for prompt, cached in zip(workload.prompts, workload.predicted, strict=True)
    )


def chains_of(shape: str, long: bool) -> list[Chain]:
    """The curve's chains: those up to LONGEST_SHORT, or the longer ones."""
    longest = 2048 if shape == "tiny" else curves.LONGEST
    return [one for one in curves.chains(longest) if (one.cuts[-1] > LONGEST_SHORT) == long]


def trials_of(shape: str) -> list[Trial]:
    """Sharing in flight: with prompts like MultihopRAG's, on the tiny shape shorter ones."""
    return in_flight.trials(320, 32) if shape == "tiny" else in_flight.trials(8000, 200)


def tasks_of(
    kit: Kit, shape: str, curve: PrefillCurve, capacity_tokens: int, page_size: int
) -> list[Task]:
    """All tasks of a shape, as the budget takes them."""
    agenda = AGENDAS[shape]
    made = []
    for kind, worth in (("curve", agenda.curve), ("long curve", agenda.long_curve)):
        if worth is not None:
            chains = chains_of(shape, long=kind == "long curve")
            seconds = sum(chain.seconds(curve) for chain in chains)
            made.append(Task("curve", shape, f"{shape}/{kind}", worth, seconds))
    if agenda.in_flight is not None:
        seconds = sum(trial.seconds(curve) for trial in trials_of(shape))
        made.append(Task("in flight", shape, f"{shape}/in flight", agenda.in_flight, seconds))
    for one in agenda.ranked(shape):
        workload = workload_of(kit, one.cell, capacity_tokens, page_size)
        seconds = cell_seconds(workload, curve)
        made.append(Task("cell", shape, name_of(one.cell), one.worth, seconds, one.cell))
    return made


def name_of(cell: Cell) -> str:
    """A cell's name among all tasks."""
    return f"{cell.shape}/{cell.key}"
