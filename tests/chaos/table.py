"""The fault table: on the terminal, and in docs/operations.md between its two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.chaos.faults import Outcome

BEGIN, END = "<!-- chaos: begin -->", "<!-- chaos: end -->"
HEADER = (
    "fault",
    "requests since",
    "planned without the index",
    "broken by it, sent again",
    "requests lost",
    "noticed after",
    "index agrees again after",
)


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """One row of text for each outcome."""
    return [
        (
            outcome.fault,
            str(outcome.sendings),
            str(outcome.passed_through),
            str(outcome.cut + len(outcome.wrong)),
            str(outcome.lost),
            _seconds(outcome.detected_s, "unnoticed"),
            _seconds(outcome.converged_s, "NEVER"),
        )
        for outcome in outcomes
    ]


def write(path: Path, outcomes: Sequence[Outcome], said: str) -> None:
    """Replace the table in the file. Raises ValueError when its marks are not there."""
    text = path.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path}: the marks {BEGIN} and {END} are missing")
    lines = [
        "| " + " | ".join(HEADER) + " |",
        "| --- |" + " ---: |" * (len(HEADER) - 1),
        *["| " + " | ".join(row) + " |" for row in rows(outcomes)],
    ]
    table = "\n".join(lines)
    path.write_text(f"{head}{BEGIN}\n{said}\n\n{table}\n{END}{tail}")


def _seconds(value: float | None, never: str) -> str:
    return never if value is None else f"{value:.1f} s"
