"""The grid on a page: for each part and load our arm beside the best of its rivals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.fleet_grid import OVERLOADS
from benchmarks.fleet_verdicts import Place, places
from cp_ray.replay.fleet.bench import FleetRow
from cp_ray.replay.fleet.report import Group

NAMED = ("least_loaded", "est_ttft", "lmetric")


def summary(rows: Sequence[FleetRow]) -> str:
    """Markdown: mean / p99 TTFT in seconds, means over seeds; intervals (95%) of our means."""
    lines: list[str] = []
    last = ""
    for place in places(rows):
        part = place.name.partition(",")[0]
        first = place.ours.rows[0]
        if part != last:
            last = part
            lines += [
                "",
                f"**{first.trace}**, {first.requests:,} requests, {first.replicas} replicas of "
                f"{first.cache_tokens:,} tokens, `{first.model}`, 1.0 = "
                f"{first.saturation_rps or 0:.2f} requests/s",
                "",
                f"| load | {' | '.join(NAMED)} | best without reordering | best with the paper's "
                "order | cp_ray | hit ratio |",
                "|---|" + "---:|" * (len(NAMED) + 4),
            ]
        lines.append(_line(place))
    return "\n".join(lines).lstrip("\n")


def ablations(rows: Sequence[FleetRow]) -> str:
    """Markdown: mean TTFT of cp_ray without each part, over that of the whole, by load."""
    loads = sorted({row.load for row in rows if row.load not in OVERLOADS})
    arms = sorted({row.policy for row in rows if row.policy.startswith("cp_ray-")})
    found = {(place.name, arm): place for place in places(rows) for arm in arms}
    lines = [
        f"| part | without | {' | '.join(f'at {load:g}' for load in loads)} |",
        "|---|---|" + "---:|" * len(loads),
    ]
    for part in dict.fromkeys(name.partition(",")[0] for name, _ in found):
        for arm in arms:
            cells = [_worse(found.get((f"{part}, {load:g}", arm)), arm) for load in loads]
            if any(cells):
                lines.append(f"| {part} | {arm.removeprefix('cp_ray-')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _worse(place: Place | None, arm: str) -> str:
    without = next((one for one in place.ablated if one.arm == arm), None) if place else None
    if place is None or without is None:
        return ""
    return f"{place.ratio(without, 'ttft_mean_s'):.2f}x"


def _line(place: Place) -> str:
    def named(name: str) -> str:
        return _pair(next((one for one in place.rivals if one.arm == name), None))

    def best(suits: Callable[[Group], bool]) -> str:
        found = place.best("ttft_mean_s", suits)
        return f"{found.rows[0].policy} {_pair(found)}" if found else ""

    ours = place.ours
    half = ours.half_width("ttft_mean_s")
    mean = f"{ours.mean('ttft_mean_s'):.3f}" + ("" if half is None else f" ± {half:.3f}")
    cells = [
        f"{place.load:g}",
        *map(named, NAMED),
        best(lambda rival: rival.rows[0].order == "none"),
        best(lambda rival: rival.rows[0].order != "none"),
        f"**{mean} / {ours.mean('ttft_p99_s'):.2f}**",
        f"{ours.mean('hit_ratio'):.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def _pair(group: Group | None) -> str:
    if group is None:
        return ""
    return f"{group.mean('ttft_mean_s'):.3f} / {group.mean('ttft_p99_s'):.2f}"
