"""Which tasks fit the device time of one slot: pure arithmetic on estimates.

Tasks are taken in order of worth while they fit; a policy is worth running only beside `none` in
the same place. Starting a shape's engine is paid with its first task.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from benchmarks.gpu.cells import AS_RETRIEVED, Cell
from benchmarks.gpu.workload import UNCACHED

Kind = Literal["cell", "curve", "in flight"]


class Task(msgspec.Struct, frozen=True):
    """Something to measure. worth: lower goes first. seconds: its estimate."""

    kind: Kind
    shape: str
    name: str
    worth: int
    seconds: float
    cell: Cell | None = None


class Fixed(msgspec.Struct, frozen=True):
    """Seconds that pass whatever is measured, assumed until seen.

    machine_s: from asking for the machine until a command runs, the transfer included. unpack_s:
    the carried engine. start_s: import, weights and cache of one shape. reserve_s: kept free.
    """

    machine_s: float = 110.0
    unpack_s: float = 15.0
    start_s: float = 70.0
    reserve_s: float = 40.0

    @property
    def once_s(self) -> float:
        """All but the starts."""
        return self.machine_s + self.unpack_s + self.reserve_s


class Line(msgspec.Struct, frozen=True):
    """A task with its moment. ends_s: seconds into the slot, None = does not fit."""

    task: Task
    ends_s: float | None


class Budget(msgspec.Struct, frozen=True):
    """The plan of one slot. lines: in order of worth. left_s: unplanned."""

    slot_s: float
    lines: tuple[Line, ...]
    left_s: float

    def taken(self, shape: str) -> list[Task]:
        """What a shape has time for, in order of worth."""
        return [
            line.task for line in self.lines if line.task.shape == shape and line.ends_s is not None
        ]

    def seconds(self, shape: str, fixed: Fixed) -> float:
        """A shape's share: its start and its tasks."""
        taken = self.taken(shape)
        return fixed.start_s + sum(task.seconds for task in taken) if taken else 0.0


def schedule(
    tasks: Sequence[Task], fixed: Fixed, slot_s: float, done: Collection[str] = ()
) -> Budget:
    """Take tasks by worth. done: names measured in an earlier slot; they need no time."""
    used = fixed.once_s
    started: set[str] = set()
    beside = {place_of(name) for name in done}
    lines = []
    for task in sorted(tasks, key=lambda one: one.worth):  # stable: cells keep their order
        if task.name in done:
            continue
        start = 0.0 if task.shape in started else fixed.start_s
        alone = task.cell is None or task.cell.policy in (AS_RETRIEVED, UNCACHED)
        place = place_of(task.name)
        fits = used + start + task.seconds <= slot_s and (alone or place in beside)
        if not fits:
            lines.append(Line(task, None))
            continue
        used += start + task.seconds
        started.add(task.shape)
        if task.cell is not None and task.cell.policy == AS_RETRIEVED:
            beside.add(place)
        lines.append(Line(task, used - fixed.reserve_s))
    return Budget(slot_s, tuple(lines), slot_s - used)


def place_of(name: str) -> str:
    """What the cells that are compared with each other have in common: 32b/100k/C16."""
    return "/".join(name.split("/")[:3])
