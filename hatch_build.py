"""Wheels carry the planner compiled, where a C compiler is at hand; else they are plain Python."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileHook(BuildHookInterface):
    """Runs cp_ray/compiling.py, which says what is compiled and how to switch it off.

    Not for an editable install: there `python -m cp_ray.compiling` does it, as `make venv` does,
    with the types of all packages at hand and again when the sources have changed.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location("compiling", root / "cp_ray/compiling.py")
        compiling = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiling)
        wanted = os.environ.get(compiling.SWITCH, "")
        if wanted == "0":
            compiling.remove(root)
            return
        try:
            compiling.compile_core(root)
        except (Exception, SystemExit) as error:  # no compiler, no headers: whatever it is
            compiling.remove(root)  # else a wheel that says it is for any machine may hold some
            if wanted == "1":
                raise
            print(f"cp_ray stays plain Python, not compiled: {error}", file=sys.stderr)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in compiling.made(root):
            build_data["force_include"][str(path)] = str(path.relative_to(root))
