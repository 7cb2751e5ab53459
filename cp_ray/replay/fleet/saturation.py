"""Load 1.0: the largest Poisson rate at which the queue of least_loaded is bounded.

For other policies it would be no measure: a queue that is longest while caches are cold, as ours
is, seems bounded at rates that nobody can serve.
"""

from __future__ import annotations

import msgspec

from cp_ray.replay.fleet.cell import Cell, Hardware, play
from cp_ray.replay.fleet.workload import Workload

BOUNDED = 2.0
"""A queue is bounded when the last quarter of arrivals waits at most so many times longer than the
second: in a queue that grows evenly it is 7 / 3."""
SEEDS = (101, 102, 103)
"""Not those of the cells. Most of them must agree."""
STEPS = 6
CLIENTS = 24.0
"""Of the closed loop, per replica: enough to keep each busy."""
LEAST, MOST = 0.5, 1.1
"""Of the closed loop's rate. More than MOST is not served: the trace ends before the queue shows
it (32 replicas), or it is chains that wait for themselves and never fill the queue."""


def saturation(workload: Workload, hardware: Hardware) -> float:
    """Requests a second, to about 1%."""
    closed = Cell(hardware, "least_loaded", "none", "closed", CLIENTS, SEEDS[0])
    full = play(workload, closed).served_per_s
    low, high = LEAST * full, MOST * full
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _bounded(workload, msgspec.structs.replace(closed, arrivals="poisson", rate=middle)):
            low = middle
        else:
            high = middle
    return low


def _bounded(workload: Workload, cell: Cell) -> bool:
    agree = 0
    for seed in SEEDS:
        agree += play(workload, msgspec.structs.replace(cell, seed=seed)).late <= BOUNDED
    return 2 * agree > len(SEEDS)
