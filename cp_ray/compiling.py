"""The planner's hot files as machine code, where the machine has a C compiler.

`python -m cp_ray.compiling` (and the package's own build) compiles the files below with mypyc and
puts the result beside them, where Python prefers it. They stay plain Python: without a compiler
the same files run as they are, at about half the speed, and tests hold both to the same plans.
This file imports nothing of the package: the build runs it before there is one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = Path("cp_ray", "core")
NAMES = (
    "arrivals", "estimated_ttft", "fleet_load", "index", "interned", "joint", "last_step",
    "limits", "load", "loss", "memory", "node", "own_times", "pages", "path", "placement",
    "prefill_curve", "prefix_cache", "record", "remembered", "replicas", "rest_order", "reuse",
    "room", "search", "seen", "tree", "trust", "who_held", "window_layout", "window_order",
)  # fmt: skip
"""Files of cp_ray/core that run once or more per planned request."""
STAMP = CORE / "compiled.sha256"
"""Digest of the sources that were compiled: code and machine code cannot drift apart unseen."""
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")
SWITCH = "CP_RAY_COMPILE"
"""0: do not compile. 1: fail where it cannot be done. Otherwise: warn, and stay with Python."""


def sources(root: Path = ROOT) -> list[Path]:
    """The files that are compiled."""
    return [root / CORE / f"{name}.py" for name in NAMES]


def digest(root: Path = ROOT) -> str:
    """Of the sources, and of the interpreter that they are compiled for."""
    found = hashlib.sha256(SUFFIX.encode())
    for path in sources(root):
        found.update(path.read_bytes())
    return found.hexdigest()


def made(root: Path = ROOT) -> list[Path]:
    """What compiling leaves behind, whether it is there or not."""
    shared = root / f"cp_ray__mypyc{SUFFIX}"
    return [shared, *(path.with_name(path.stem + SUFFIX) for path in sources(root)), root / STAMP]


def is_compiled() -> bool:
    """Whether this process would run machine code."""
    spec = importlib.util.find_spec("cp_ray.core.search")
    return spec is not None and str(spec.origin).endswith(SUFFIX)


def is_stale(root: Path = ROOT) -> bool:
    """Whether there is machine code of other sources than those beside it."""
    stamp = root / STAMP
    left = any(path.exists() for path in made(root))
    return left and not (stamp.exists() and stamp.read_text() == digest(root))


def remove(root: Path = ROOT) -> None:
    """Back to plain Python."""
    for path in made(root):
        path.unlink(missing_ok=True)


def compile_core(root: Path = ROOT) -> None:
    """Compile in place; about a minute. Raises whatever mypyc and the C compiler raise."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    remove(root)
    before = Path.cwd()
    os.chdir(root)  # module names are paths from here
    try:
        with tempfile.TemporaryDirectory() as build:
            flags = [f"--cache-dir={build}/types"]  # the rest is as in pyproject.toml
            names = [str(path.relative_to(root)) for path in sources(root)]
            extensions = mypycify(
                [*flags, *names], opt_level="2", debug_level="0",
                target_dir=build, group_name="cp_ray",
            )  # fmt: skip
            command = Distribution({"name": "cp_ray", "ext_modules": extensions}).get_command_obj(
                "build_ext"
            )
            command.inplace, command.build_temp = True, build
            command.ensure_finalized()
            command.run()
        (root / STAMP).write_text(digest(root))
    except BaseException:
        remove(root)
        raise
    finally:
        os.chdir(before)


def main() -> int:
    """Compile unless it is done, or not wanted; where it cannot be done, say so and go on."""
    wanted = os.environ.get(SWITCH, "")
    if wanted == "0":
        remove()
    elif is_stale() or not all(path.exists() for path in made()):
        try:
            compile_core()
        except (Exception, SystemExit) as error:  # no compiler, no headers: whatever it is
            if wanted == "1":
                raise
            sys.stderr.write(f"cp_ray stays plain Python, not compiled: {error}\n")
    else:
        (ROOT / STAMP).touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
