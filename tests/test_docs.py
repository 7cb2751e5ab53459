"""Documents say what is there: links lead somewhere, settings exist, the paper is covered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from cp_ray.config import AppConfig

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("cluster/*.md")])
REPORTED = [1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 14, 15, 17, 19, 22, 25]
"""Cases of docs/field_cases.md: none may fall out of the table."""
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and the site make them."""
    headings = HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_into_a_page_meets_a_heading(page: Path) -> None:
    links = [
        (page.parent / to if to else page, anchor)
        for to, anchor in ANCHOR.findall(page.read_text())
        if "://" not in to
    ]
    assert [anchor for to, anchor in links if anchor not in anchors(to)] == []


def test_the_site_has_every_page() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named = str(site)
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("*.md")]
    assert [page for page in pages if page not in named] == []


def test_every_test_named_for_a_reported_fault_exists() -> None:
    text = (ROOT / "docs" / "field_cases.md").read_text()
    rows = re.findall(r"^\| (\d+) \|(.*)$", text, flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == REPORTED
    for number, row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"case {number} has no test"
        for path, name in named:
            code = (ROOT / path).read_text()
            assert re.search(rf"^(async )?def {name}\(", code, flags=re.MULTILINE), (number, name)
            if name.startswith("check_"):
                assert len(re.findall(rf"\b{name}\b", code)) > 1, "it is in the suite's list"


def test_every_file_named_in_a_decision_exists() -> None:
    for page in (ROOT / "docs" / "decisions").glob("0*.md"):
        named = re.findall(r"`((?:cp_ray|tests)/[\w/]+\.py)`", page.read_text())
        assert named, page.name
        assert [name for name in named if not (ROOT / name).exists()] == [], page.name


def test_the_index_of_decisions_is_complete() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    assert [page.name for page in folder.glob("0*.md") if page.name not in index] == []


def test_every_limit_named_is_a_setting() -> None:
    text = (ROOT / "docs" / "operations.md").read_text().partition("## Limits")[2]
    rows = re.findall(r"^\| (`.+?`) \|", text.partition("## ")[0], flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 5
    assert named - AppConfig.model_fields.keys() == set()


def test_the_defaults_in_the_table_of_limits_are_the_settings_own() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    units = {"": 1, "MiB": 1 << 20, "ms": 1, "s": 1}
    for name, number, unit in re.findall(r"^\| `(\w+)` \| (\d+) ?(\w*)", text, flags=re.MULTILINE):
        default = AppConfig.model_fields[name].default
        assert default == int(number) * units.get(unit, 1), name


def test_the_table_of_the_paper_names_every_algorithm_figure_and_core_file() -> None:
    text = (ROOT / "docs" / "paper.md").read_text()
    wanted = [
        "Eq. 1",
        *(f"Algorithm {n}" for n in range(1, 6)),
        *(f"Figure {n}" for n in (5, 6, 7)),
    ]
    assert [name for name in wanted if f"| {name}" not in text] == []
    specified = "distance search ordering dedup clustering scheduling annotation prompt node tree"
    core = [f"core/{name}.py" for name in [*specified.split(), "index", "placement"]]
    assert [name for name in core if name not in text] == []
