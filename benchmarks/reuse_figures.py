"""The paper's figures 3, 8, 9, 12, 13 and table 3b, and limits, replayed: a table each, and plots.

    python -m benchmarks.reuse_figures [NAME ..]     measure these (default: all)

Results go to benchmarks/results/, pictures to docs/img; `reuse_table write` puts both on the page.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import msgspec

from benchmarks.reuse_table import DATA, IMAGES, RESULTS, SHOWN
from cp_ray.replay.report import plot
from cp_ray.replay.reuse import Bench, ReuseOptions, ReuseRow
from cp_ray.replay.stats import plot_stats, trace_stats
from cp_ray.replay.trace import read_trace

MULTIHOP = DATA / "multihoprag"
LOCOMO = DATA / "locomo_mem" / "trace_top20_minilm.jsonl.gz"
ALL = ("none", "radix_lpm", "lmcache", "paper", "online", "paper_offline")


class Figure(msgspec.Struct, frozen=True):
    """title: a heading. note: what is seen. cells: combined with each policy."""

    title: str
    note: str
    cells: tuple[ReuseOptions, ...]


def _cells(base: ReuseOptions, **lists: Sequence[object]) -> tuple[ReuseOptions, ...]:
    return tuple(
        msgspec.structs.replace(base, **dict(zip(lists, values, strict=True)))
        for values in itertools.product(*lists.values())
    )


_ARMS = tuple(
    f"{name}{part}" for name in ("online", "paper_offline") for part in ("", "-schedule", "-order")
)
_LIMITED = tuple(
    f"online-{limit}" for limit in ("top1", "top3", "top5", "move2", "move5", "move10")
)

FIGURES = {
    "parts": Figure(
        "Order and schedule apart (figure 8)",
        "multihoprag, 32 in flight, shared within the step. `-schedule`: blocks in the planned "
        "order, requests as they came; `-order`: the reverse.",
        _cells(
            ReuseOptions(MULTIHOP, policies=("none", *_ARMS), in_flight=32),
            cache_tokens=(100_000, 400_000),
        ),
    ),
    "k": Figure(
        "Retrieval depth (figure 9)",
        "multihoprag, 400k tokens, one at a time; the paper shows throughput, which the tokens "
        "computed stand for here.",
        _cells(
            ReuseOptions(MULTIHOP, policies=ALL, cache_tokens=400_000),
            k=(3, 5, 10, 15),
        ),
    ),
    "time": Figure(
        "Over time (figures 12 and 13)",
        "multihoprag, 400k tokens, one at a time.",
        _cells(
            ReuseOptions(MULTIHOP, policies=ALL, cache_tokens=400_000, series=True),
        ),
    ),
    "mixed": Figure(
        "Conversations side by side (table 3b)",
        "mtrag: each prompt begins with the conversation's earlier turns; `paper` and `online` "
        "leave out what these hold (Algorithm 3), the others send it again. Shares are of whole "
        "prompts, so that a policy that sends less is judged by the tokens it computes.",
        _cells(
            ReuseOptions(
                DATA / "mtrag",
                policies=("none", "radix_lpm", "lmcache", "paper", "online"),
                cache_tokens=400_000,
            ),
            conversations=(2, 4, 8, 16, 32),
        ),
    ),
    "limits": Figure(
        "What a limit on reordering gives up",
        "400k tokens, one at a time. `top` N: the N best blocks stay in front (setting "
        "`keep_top`); `move` N: no block stands more than N places from its rank (setting "
        "`max_displacement`). The rank is told to the model in any case.",
        _cells(
            ReuseOptions(
                MULTIHOP,
                policies=("none", "online", *_LIMITED),
                cache_tokens=400_000,
            ),
            trace=(MULTIHOP, DATA / "qasper", DATA / "mtrag", LOCOMO),
        ),
    ),
}


def measure(name: str) -> None:
    figure = FIGURES[name]
    bench = Bench()
    rows = [row for cell in figure.cells for row in bench.run(cell)]
    IMAGES.mkdir(exist_ok=True)
    if len({row.trace for row in rows}) == 1:
        plot(rows, IMAGES / f"reuse-{name}.png")
    kept = [msgspec.structs.replace(row, series=()) for row in rows]
    RESULTS.parent.mkdir(exist_ok=True)
    (RESULTS.parent / f"reuse_{name}.json").write_bytes(msgspec.json.encode(kept))


def accesses() -> None:
    names = ("multihoprag", "qasper", "mtrag", "fairytaleqa_100_bm25")
    IMAGES.mkdir(exist_ok=True)
    plot_stats(
        [trace_stats(read_trace(DATA / name)) for name in names], IMAGES / "trace-accesses.png"
    )


def sections() -> str:
    """Markdown of all that was measured."""
    parts = []
    for name, figure in FIGURES.items():
        file = RESULTS.parent / f"reuse_{name}.json"
        if not file.exists():
            continue
        rows = msgspec.json.decode(file.read_bytes(), type=list[ReuseRow])
        parts += [f"## {figure.title}", "", figure.note, "", *_table(rows), ""]
        if (IMAGES / f"reuse-{name}.png").exists():
            parts += [f"![{figure.title}](img/reuse-{name}.png)", ""]
    return "\n".join(parts)


def _table(rows: Sequence[ReuseRow]) -> list[str]:
    def column(row: ReuseRow) -> str:
        if row.conversations:
            return f"{row.conversations} conversations"
        if several:
            return row.trace
        return f"k = {row.k}" if row.k else SHOWN.get(str(row.cache_tokens), "inf")

    several = len({row.trace for row in rows}) > 1
    columns = dict.fromkeys(column(row) for row in rows)
    at = {(row.policy, column(row)): row for row in rows}
    lines = [
        "| policy | " + " | ".join(columns) + " |",
        "| --- | " + " | ".join("---:" for _ in columns) + " |",
    ]
    for policy in dict.fromkeys(row.policy for row in rows):
        cells = [at[policy, name] for name in columns]
        shown = [f"{cell.hit_ratio * 100:.1f}%, {cell.prefill_tokens:,.0f}" for cell in cells]
        lines.append(f"| {policy} | " + " | ".join(shown) + " |")
    return [*lines, "", "Share from the cache, and tokens computed per request."]


def main() -> int:
    for name in sys.argv[1:] or ("accesses", *FIGURES):
        if name == "accesses":
            accesses()
        elif name in FIGURES:
            measure(name)
        else:
            print(f"{name} is not one of accesses, {', '.join(FIGURES)}")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
