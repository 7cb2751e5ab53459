"""The table is put between its marks, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.chaos.suffering import Outcome
from tests.chaos.table import BEGIN, END, rows, write

OUTCOME = Outcome("index: kill -9", 120, 7, 0, 0, (), 0, 0.6, 0.5, 0.25, 6.5, "")


def test_a_new_table_replaces_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(page, [OUTCOME], "said")
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\nsaid\n")
    assert text.endswith(f"{END}\nafter\n")
    row = (
        "| index: kill -9 | 120 | 7 planned without the index | 0.6 s | 0.5 s | 0 | 0.2 s | 6.5 s |"
    )
    assert row in text
    assert "old" not in text


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    with pytest.raises(ValueError, match="marks"):
        write(page, [OUTCOME], "said")
    assert page.read_text() == "nothing here\n"


def test_a_closed_port_is_told_apart_from_answers_that_broke() -> None:
    row = rows([msgspec.structs.replace(OUTCOME, cut=3, refused=9, passed_through=0)])[0]
    assert row[2] == "3 broken, sent again; 9 times the port closed, knocked again"


def test_an_outcome_holds_only_without_losses_and_with_agreement() -> None:
    assert OUTCOME.held
    for broken in ({"wrong": ("x",)}, {"lost": 1}, {"converged_s": None}):
        assert not msgspec.structs.replace(OUTCOME, **broken).held
