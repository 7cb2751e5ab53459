"""The compiled planner and its plain Python sources say the same, all through an index's life."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cp_ray import compiling
from tests.properties.plan_stream import life

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package without machine code."""
    root = tmp_path_factory.mktemp("plain")
    code = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "cp_ray", root / "cp_ray", ignore=code)
    shutil.copytree(ROOT / "tests" / "properties", root / "tests" / "properties", ignore=code)
    shutil.copy(ROOT / "tests" / "__init__.py", root / "tests")
    return root


@pytest.mark.skipif(not compiling.is_compiled(), reason="not compiled: no C compiler, or off")
@pytest.mark.parametrize("seed", range(3))
def test_compiled_and_plain_plan_the_same(plain: Path, seed: int) -> None:
    """Seeds differ in the limits on reordering, too."""
    told = subprocess.run(
        [sys.executable, "tests/properties/plan_stream.py", str(seed)],
        cwd=plain,
        env={**os.environ, "PYTHONPATH": str(plain)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert told[0] == "False", "the copy ran plain"
    assert list(life(seed)) == told[1:]


HEADERS = Path(sysconfig.get_paths()["include"], "Python.h")


@pytest.mark.skipif(
    shutil.which("cc") is None or not HEADERS.exists() or os.environ.get(compiling.SWITCH) == "0",
    reason="no C compiler, no Python headers, or off",
)
def test_where_there_is_a_compiler_the_planner_is_compiled() -> None:
    assert compiling.is_compiled(), "make venv compiles it"
    assert not compiling.is_stale()


def test_changed_sources_are_told_from_those_compiled(plain: Path) -> None:
    assert not compiling.is_stale(plain), "nothing is compiled there"
    (plain / compiling.STAMP).write_text(compiling.digest(plain))
    assert not compiling.is_stale(plain)
    source = compiling.sources(plain)[0]
    source.write_text(source.read_text() + "\n")
    assert compiling.is_stale(plain)
    compiling.remove(plain)
    assert not compiling.is_stale(plain)
