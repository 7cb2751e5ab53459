"""The cells of the table: which shape, cache, concurrency and policy, and what each is worth."""

from __future__ import annotations

import msgspec

from benchmarks.gpu.workload import UNCACHED

AUTHORS_PLAN = "plan:authors_plan.jsonl.gz"
"""The authors' package over the whole trace; of a part of the trace, what is left of it."""
AS_RETRIEVED = "none"
POLICIES = (AS_RETRIEVED, "offline", "online", "paper_offline", AUTHORS_PLAN)
"""vLLM's own prefix caching, ours, and the paper's: its construction run on the same requests as
ours, and the authors' published plan."""


class Cell(msgspec.Struct, frozen=True):
    """One run. cache_tokens: the KV cache, None = what the device has room for."""

    shape: str
    policy: str
    concurrency: int
    cache_tokens: int | None
    requests: int

    @property
    def key(self) -> str:
        """Names the cell in results; the same in every run."""
        return f"{self.cache}/C{self.concurrency}/{self.policy}/{self.requests}"

    @property
    def cache(self) -> str:
        """The cache as it is printed."""
        return "uncapped" if self.cache_tokens is None else f"{self.cache_tokens // 1000}k"

    def beside(self, policy: str) -> Cell:
        """The cell to compare with."""
        return msgspec.structs.replace(self, policy=policy)


LATER = 200
"""Added to the worth of what can wait until everything else has been measured."""


class Place(msgspec.Struct, frozen=True):
    """Where every policy is run. worth: lower goes first, among all tasks of all shapes."""

    cache_tokens: int | None
    concurrency: int
    worth: int


class Agenda(msgspec.Struct, frozen=True):
    """What is measured of a shape, and how much each part is worth; None = not measured.

    uncached_requests: without caching a token costs the same whatever the order, so that a tenth
    of the requests tell.
    """

    requests: int
    uncached_requests: int
    places: tuple[Place, ...]
    curve: int
    long_curve: int | None
    in_flight: int | None
    uncached: int = 45

    def ranked(self, shape: str) -> list[Ranked]:
        """Every cell."""
        first = self.places[0]
        cells = []
        for at in self.places:
            for policy in POLICIES:
                cell = Cell(shape, policy, at.concurrency, at.cache_tokens, self.requests)
                # What a plan of the paper's reuses hardly depends on the place: once is enough.
                again = policy == AUTHORS_PLAN or (policy == "paper_offline" and at is not first)
                cells.append(Ranked(cell, at.worth + (LATER if again else 0)))
        alone = Cell(shape, UNCACHED, first.concurrency, None, self.uncached_requests)
        return [*cells, Ranked(alone, self.uncached)]


class Ranked(msgspec.Struct, frozen=True):
    """A cell and its worth."""

    cell: Cell
    worth: int


AGENDAS = {
    "32b": Agenda(
        requests=72,
        uncached_requests=8,
        places=(
            Place(None, 16, 20),
            Place(100_000, 16, 60),
            Place(None, 1, 80),
            Place(100_000, 1, 100),
        ),
        curve=10,
        long_curve=50,
        in_flight=None,
    ),
    "4b": Agenda(
        requests=320,
        uncached_requests=32,
        places=(
            Place(400_000, 16, 31),
            Place(100_000, 16, 70),
            Place(None, 16, 90),
            Place(400_000, 1, 110),
            Place(100_000, 1, 120),
            Place(None, 1, 130),
        ),
        curve=30,
        long_curve=46,
        in_flight=40,
    ),
    "tiny": Agenda(
        requests=16,
        uncached_requests=4,
        places=(Place(6_400, 1, 20), Place(None, 4, 30)),
        curve=10,
        long_curve=None,
        in_flight=40,
    ),
}
"""By shape, in the order in which the engines are started. tiny: what the tests run on CPU."""
