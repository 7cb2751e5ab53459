"""The fault table: on the terminal, and in docs/operations.md between its two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.chaos.suffering import Outcome

BEGIN, END = "<!-- chaos: begin -->", "<!-- chaos: end -->"
HEADER = (
    "fault",
    "requests since",
    "what clients saw",
    "slowest answer",
    "of plain ones",
    "requests lost",
    "noticed after",
    "as before after",
)


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """One row of text for each outcome."""
    return [
        (
            outcome.fault,
            str(outcome.sendings),
            _seen(outcome),
            _seconds(outcome.slowest_s, ""),
            _seconds(outcome.slowest_plain_s, ""),
            str(outcome.lost),
            _seconds(outcome.detected_s, "unnoticed"),
            _seconds(outcome.converged_s, "NEVER"),
        )
        for outcome in outcomes
    ]


def _seen(outcome: Outcome) -> str:
    counts = (
        (outcome.cut, "broken, sent again"),
        (outcome.refused, "times the port closed, knocked again"),
        (len(outcome.wrong), "FAILED"),
        (outcome.passed_through, "planned without the index"),
    )
    return "; ".join(f"{count} {what}" for count, what in counts if count) or "nothing"


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
