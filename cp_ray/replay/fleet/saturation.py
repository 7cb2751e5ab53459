"""The load that is called 1.0: the largest Poisson rate at which least_loaded's queue is bounded."""

from __future__ import annotations

import msgspec

from cp_ray.replay.fleet.cell import Cell, Hardware, play
from cp_ray.replay.fleet.workload import Workload

BOUNDED = 2.0
"""A queue is bounded when the last quarter of arrivals waits at most so many times longer than the
second: in a queue that grows evenly it is 7 / 3."""
SEEDS = (101, 102, 103)
"""Not those of the cells. Most of them must agree."""
STEPS = 7


def saturation(workload: Workload, hardware: Hardware) -> float:
    """Requests a second, to about 1%. Bisects between half and 1.1 of the closed loop's rate."""
    closed = Cell(hardware, "least_loaded", "none", "closed", 16.0, SEEDS[0])
    full = play(workload, closed)
    tokens = full.throughput_tok_s
    mean_prompt = workload.prompt_tokens()
    low, high = 0.5 * tokens / mean_prompt, 1.1 * tokens / mean_prompt
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _bounded(workload, hardware, middle):
            low = middle
        else:
            high = middle
    return low


def _bounded(workload: Workload, hardware: Hardware, rate: float) -> bool:
    agree = 0
    for seed in SEEDS:
        cell = Cell(hardware, "least_loaded", "none", "poisson", rate, seed)
        agree += play(workload, cell).late <= BOUNDED
    return 2 * agree > len(SEEDS)


def repeated(workload: Workload, times: int) -> Workload:
    """The workload several times over, for a steady state that one pass is too short for."""
    jobs = []
    for turn in range(times):
        for job in workload.jobs:
            request = job.request
            new_id = type(request.request_id)(f"{turn}/{request.request_id}")
            after = None if job.after is None else type(job.after)(f"{turn}/{job.after}")
            renamed = msgspec.structs.replace(request, request_id=new_id)
            jobs.append(msgspec.structs.replace(job, request=renamed, after=after))
    return Workload(workload.name, tuple(jobs), workload.stamps)
