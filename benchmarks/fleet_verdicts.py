"""Which goals of the fleet the rows meet, and by how much each cell misses: `--report`.

A cell here is a part at one load, means over its seeds. A goal is judged only where its rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from benchmarks.fleet_grid import OVERLOADS, SATURATED
from cp_ray.replay.fleet.bench import FleetRow
from cp_ray.replay.fleet.report import Group, groups

TIE = 0.02
OURS = "cp_ray"


class Judged(msgspec.Struct, frozen=True):
    """One cell of one goal. by: share by which it is missed, negative where it is met."""

    where: str
    by: float
    said: str


class Place(msgspec.Struct, frozen=True):
    """One part at one load: our arm, the same without one of its parts, and the rivals'."""

    name: str
    trace: str
    model: str
    cache_tokens: int
    load: float
    ours: Group
    ablated: tuple[Group, ...]
    rivals: tuple[Group, ...]

    def best(self, field: str, suits: Callable[[Group], bool] = lambda _: True) -> Group | None:
        """The rival that is lowest in a field, held against ours."""
        suited = [rival for rival in self.rivals if suits(rival)]
        return min(suited, key=lambda rival: self.ratio(rival, field), default=None)

    def ratio(self, other: Group, field: str) -> float:
        """Its mean over ours, of the seeds that it has: another's alone could make it the best."""
        seeds = {row.seed for row in other.rows}
        same = tuple(row for row in self.ours.rows if row.seed in seeds)
        return other.mean(field) / Group(same or self.ours.rows).mean(field)


def places(rows: Sequence[FleetRow]) -> list[Place]:
    """Every cell that has rows of cp_ray, overload left out: few play it."""
    found: dict[str, list[Group]] = {}
    for group in groups([row for row in rows if row.load not in OVERLOADS]):
        row = group.rows[0]
        found.setdefault(f"{_part(row)}, {row.load:g}", []).append(group)
    places = []
    for name, members in found.items():
        ours = next((group for group in members if group.arm == OURS), None)
        if ours is not None:
            row = ours.rows[0]
            ablated = tuple(group for group in members if group.arm.startswith(f"{OURS}-"))
            rivals = tuple(group for group in members if not group.arm.startswith(OURS))
            fleet = (row.trace, row.model, row.cache_tokens, row.load)
            places.append(Place(name, *fleet, ours, ablated, rivals))
    return places


def _part(row: FleetRow) -> str:
    return f"{row.trace} {row.replicas}x{row.cache_tokens // 1000}k {row.model}"


def verdicts(rows: Sequence[FleetRow]) -> str:
    """A Markdown list: each goal, in how many of its cells it is met, and what is missing."""
    played = places(rows)
    shared = [place for place in played if not place.trace.endswith(("_no_overlap", "_warm"))]
    goals = {
        "mean TTFT lowest (within 2%)": _lowest(shared, "ttft_mean_s"),
        "p99 TTFT lowest (within 2%)": _lowest(shared, "ttft_p99_s"),
        "throughput highest (within 2%)": _throughput(shared),
        "multihoprag at 0.8: mean TTFT at least 2x under the best without reordering": _times(
            shared, 2.0, lambda rival: rival.rows[0].order == "none"
        ),
        "multihoprag at 0.8: at least 1.3x under the best with the paper's order": _times(
            shared, 1.3, lambda rival: rival.rows[0].order != "none"
        ),
        "multihoprag: throughput at saturation at least 2x round robin": _saturated(rows),
        "serial, 300k: multihoprag at 1.2 within 1.2x of its mean at 0.5": _steady(shared),
        "serial, 300k: qasper at 1.2 below 2.6 s": _below(shared, 2.6),
        "without overlap: within 2% of least_loaded": _apart(played),
        "control, caches that hold every prompt already: no gain over 5%": _control(played),
    }
    return "\n".join(line for goal, cells in goals.items() for line in _lines(goal, list(cells)))


def _lines(goal: str, cells: list[Judged]) -> Iterator[str]:
    missed = sorted((cell for cell in cells if cell.by > 1e-9), key=lambda cell: -cell.by)
    if not cells:
        yield f"- **{goal}**: not played"
        return
    said = "met" if not missed else "missed"
    yield f"- **{goal}**: {said} ({len(cells) - len(missed)} of {len(cells)} cells)"
    shown = missed or (cells if len(cells) <= 8 else [])
    for cell in shown:
        by = f"missed by {cell.by:.1%}" if cell in missed else "met"
        yield f"  - {cell.where}: {cell.said}: {by}"


def _lowest(cells: Sequence[Place], field: str) -> Iterator[Judged]:
    for place in cells:
        best = place.best(field)
        if best is not None:
            theirs, ratio = best.mean(field), place.ratio(best, field)
            said = f"{theirs / ratio:.3f} s, {best.arm} {theirs:.3f} s"
            yield Judged(place.name, 1 / (ratio * (1 + TIE)) - 1, said)


def _throughput(cells: Sequence[Place]) -> Iterator[Judged]:
    """Whole chains (requests, where nothing follows) a second until the last has ended.

    Tokens would not do: whoever repeats blocks in a conversation serves more of them.
    """
    field = "chains_per_s"
    for place in cells:
        best = max(place.rivals, key=lambda rival: place.ratio(rival, field), default=None)
        if best is not None:
            theirs, ratio = best.mean(field), place.ratio(best, field)
            said = f"{theirs / ratio:.2f} a second, {best.arm} {theirs:.2f}"
            yield Judged(place.name, ratio * (1 - TIE) - 1, said)


def _times(
    cells: Sequence[Place], factor: float, suits: Callable[[Group], bool]
) -> Iterator[Judged]:
    for place in cells:
        if place.trace != "multihoprag" or place.load != 0.8 or place.cache_tokens > 1_000_000:
            continue
        best = place.best("ttft_mean_s", suits)
        if best is not None:
            ratio = place.ratio(best, "ttft_mean_s")
            said = f"{ratio:.2f}x under {best.arm} ({best.mean('ttft_mean_s'):.3f} s)"
            yield Judged(place.name, factor / ratio - 1, said)


def _saturated(rows: Sequence[FleetRow]) -> Iterator[Judged]:
    """Prompt tokens a second served while far more are asked for; means over overloads and seeds.

    Not requests until the last has ended: the tail would tell of one replica's luck. Only loads and
    seeds count that both have.
    """
    found: dict[str, dict[str, dict[tuple[float, int], float]]] = {}
    for row in rows:
        if row.load in OVERLOADS and row.policy in SATURATED:
            served = found.setdefault(_part(row), {policy: {} for policy in SATURATED})
            served[row.policy][row.load, row.seed] = row.throughput_tok_s
    for part, by_policy in found.items():
        mine, its = (by_policy[policy] for policy in SATURATED)
        if both := mine.keys() & its.keys():
            ours, theirs = (sum(served[one] for one in both) / len(both) for served in (mine, its))
            said = f"{ours / theirs:.2f}x ({ours / 1000:,.0f} and {theirs / 1000:,.0f}"
            yield Judged(part, 2.0 * theirs / ours - 1, f"{said} thousand tokens/s)")


def _steady(cells: Sequence[Place]) -> Iterator[Judged]:
    serial = {
        (place.name.partition(",")[0], place.load): place.ours.mean("ttft_mean_s")
        for place in cells
        if (place.trace, place.model, place.cache_tokens) == ("multihoprag", "serial", 300_000)
    }
    for (part, load), mean in serial.items():
        if load == 1.2 and (part, 0.5) in serial:
            ratio = mean / serial[part, 0.5]
            yield Judged(part, ratio / 1.2 - 1, f"{ratio:.2f}x")


def _below(cells: Sequence[Place], limit_s: float) -> Iterator[Judged]:
    for place in cells:
        if (place.trace, place.model, place.cache_tokens) == ("qasper", "serial", 300_000):
            mean = place.ours.mean("ttft_mean_s")
            if place.load == 1.2:
                yield Judged(place.name, mean / limit_s - 1, f"{mean:.2f} s")


def _apart(cells: Sequence[Place]) -> Iterator[Judged]:
    for place in cells:
        for rival in place.rivals:
            if place.trace.endswith("_no_overlap") and rival.arm == "least_loaded":
                ratio = place.ours.mean("ttft_mean_s") / rival.mean("ttft_mean_s")
                yield Judged(place.name, ratio / (1 + TIE) - 1, f"{ratio:.3f}x")


def _control(cells: Sequence[Place]) -> Iterator[Judged]:
    for place in cells:
        best = place.best("ttft_mean_s") if place.trace.endswith("_warm") else None
        if best is not None:
            gain, theirs = place.ratio(best, "ttft_mean_s"), best.mean("ttft_mean_s")
            means = f"{theirs / gain:.3f} and {theirs:.3f} s"
            yield Judged(place.name, gain / 1.05 - 1, f"{gain:.2f}x under {best.arm} ({means})")
