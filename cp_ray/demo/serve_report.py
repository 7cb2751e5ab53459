"""What `cp-ray bench serve --engine simulated` prints."""

from __future__ import annotations

import msgspec

from cp_ray.demo.serve_bench import Cell, ServeBench


def show_serve(found: ServeBench, *, as_json: bool) -> int:
    """Print it; 1 when a limit is missed."""
    from rich.console import Console

    console = Console(width=120)
    if as_json:
        console.print_json(msgspec.json.encode(found).decode())
    else:
        for line in lines(found):
            console.print(line, highlight=False, markup=False)
    beside = Console(stderr=as_json, width=120)  # JSON stands alone
    for fault in found.faults:
        beside.print(f"FAULT {fault}", highlight=False, markup=False)
    return 1 if found.faults else 0


def lines(found: ServeBench) -> list[str]:
    """The report, for people."""
    idle = ", ".join(f"{kind} {1000 * s:.0f}" for kind, s in sorted(found.idle_cpu.items()))
    shown = [f"CPU without requests, ms a second, taken off below: {idle}"]
    for cell in found.cells:
        shown += ["", *_cell(cell)]
    streams = found.streams
    if streams is not None:
        shown += [
            "",
            f"{streams.open_at_once} of {streams.asked} streams open at a time, "
            f"{streams.whole} whole, {streams.failed} failed; all open after "
            f"{streams.opened_s:.0f} s, over after {streams.seconds:.0f} s, "
            f"{streams.memory_mb:.0f} MB; restarted: {', '.join(streams.restarted) or 'nothing'}",
        ]
    return shown


def _cell(cell: Cell) -> list[str]:
    stages = ", ".join(f"{name} {ms:.2f}" for name, ms in cell.stages_median_ms.items())
    mine, its = cell.text_cpu_ms
    return [
        f"{cell.kilobytes} KB, {cell.texts} texts: limit {cell.saturation_per_s:.1f}/s, measured "
        f"at {cell.rate_per_s:.1f}/s, {cell.requests} requests, {cell.failed} failed",
        f"  body read to engine called: median {cell.inside_median_ms:.2f} ms, p99 "
        f"{cell.inside_p99_ms:.2f} ms (medians since the body was read: {stages})",
        f"  a byte to an idle process and back, meanwhile: median {cell.echo_ms[0]:.2f} ms, p99 "
        f"{cell.echo_ms[1]:.2f} ms",
        f"  to a bare application: TTFT {_plus(cell.added_ttft_ms)} on {cell.bare.ttft_ms:.1f}, "
        f"whole answer {_plus(cell.added_total_ms)} on {cell.bare.total_ms:.1f}",
        f"  CPU a request {cell.cp_ray.cpu_all_ms:.1f} ms to {cell.bare.cpu_all_ms:.1f}: "
        f"{cell.cpu_ratio:.2f} times; of them text {mine:.2f} and {its:.2f}, without it "
        f"{cell.cpu_ratio_without_text:.2f} times",
        f"  by kind, ms: {_by_kind(cell)}",
    ]


def _plus(added: tuple[float, float]) -> str:
    return f"{added[0]:+.2f} ms (95%: {added[0] - added[1]:+.2f} to {added[0] + added[1]:+.2f})"


def _by_kind(cell: Cell) -> str:
    mine, its = cell.cp_ray.cpu_ms, cell.bare.cpu_ms
    kinds = sorted({*mine, *its})
    return ", ".join(f"{k} {mine.get(k, 0.0):.1f} / {its.get(k, 0.0):.1f}" for k in kinds)
