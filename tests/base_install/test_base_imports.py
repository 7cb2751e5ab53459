"""What serves the simulated engine needs no extra; `make test-base` installs it and asks it."""

from __future__ import annotations

import subprocess
import sys

from tests.base_install.__main__ import ABSENT

SERVING = ("deployment", "cli", "doctor", "router.ingress", "index_actor.actor", "workers.replica")


def test_serving_imports_nothing_that_only_extras_bring() -> None:
    code = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None
import importlib
for name in {SERVING!r}:
    importlib.import_module("cp_ray." + name)
from cp_ray.config import AppConfig
from cp_ray.workers.replica import make_engine
make_engine(AppConfig(engine="simulated"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
