"""What was measured, as one JSON file for each shape; a later run adds to it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from benchmarks.gpu.cells import Cell
from benchmarks.gpu.engine_run import Facts, Measured
from cp_ray.core.prefill_curve import Sample
from cp_ray.errors import ConfigError


class CellResult(msgspec.Struct, frozen=True):
    """One cell. capacity_tokens: the cache it really had. predicted: cached tokens, by the plan.

    reuse_hit: of `bench reuse`. estimated_s, wall_s: the budget's, and the run's.
    """

    cell: Cell
    date: str
    facts: Facts
    capacity_tokens: int
    block_tokens: int
    predicted: tuple[int, ...]
    reuse_hit: float
    estimated_s: float
    wall_s: float
    requests: tuple[Measured, ...]

    @property
    def tokens(self) -> int:
        """All prompts together."""
        return sum(one.tokens for one in self.requests)

    @property
    def engine_hit(self) -> float:
        """Cached tokens by the engine's own count, as a share of block tokens."""
        return sum(one.cached for one in self.requests) / self.block_tokens

    @property
    def predicted_hit(self) -> float:
        """The same as the plan predicts it, in the engine's pages."""
        return sum(self.predicted) / self.block_tokens


class InFlightResult(msgspec.Struct, frozen=True):
    """Siblings sent in one order. cached_share: of what they could take from each other."""

    order: str
    siblings: int
    families: int
    prefix_tokens: int
    tail_tokens: int
    cache_tokens: int | None
    cached_share: tuple[float, ...]
    makespan_s: tuple[float, ...]
    ttft_mean_s: tuple[float, ...]
    facts: Facts
    date: str

    @property
    def key(self) -> str:
        """Names the experiment."""
        room = "all" if self.cache_tokens is None else str(self.cache_tokens)
        return f"{self.siblings}x{self.families}/{self.prefix_tokens}/{room}/{self.order}"


class Results(msgspec.Struct):
    """Everything of one shape. done: names of finished tasks. skipped: no time for in the last run.

    samples: of the prefill curve, from all runs.
    """

    shape: str
    done: list[str] = msgspec.field(default_factory=list)
    skipped: list[str] = msgspec.field(default_factory=list)
    cells: dict[str, CellResult] = msgspec.field(default_factory=dict)
    in_flight: dict[str, InFlightResult] = msgspec.field(default_factory=dict)
    samples: list[Sample] = msgspec.field(default_factory=list)


def results_file(folder: Path, shape: str) -> Path:
    """Where a shape's results are."""
    return folder / f"results-{shape}.json"


def load(folder: Path, shape: str) -> Results:
    """Earlier results; none where there is no file."""
    file = results_file(folder, shape)
    if not file.is_file():
        return Results(shape)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Results)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file}: {error}; name another folder, or remove it") from error


def save(folder: Path, results: Results) -> None:
    """Write all of it or nothing: a run may be killed at its limit."""
    file = results_file(folder, results.shape)
    folder.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".part")
    fresh.write_bytes(msgspec.json.encode(results))
    os.replace(fresh, file)  # noqa: PTH105
