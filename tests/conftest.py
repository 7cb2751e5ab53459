"""One Ray instance for the whole session, started by the first test that needs it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from cp_ray.compiling import is_stale
from cp_ray.demo.own_serve import start_serve

ROOT = Path(__file__).resolve().parent.parent
settings.register_profile("cp_ray", deadline=None)  # how busy the machine is says nothing of us
settings.load_profile("cp_ray")


def pytest_configure(config: pytest.Config) -> None:
    """Ray's own pydantic models are old-fashioned; that is not ours to mend."""
    config.addinivalue_line(
        "filterwarnings", "ignore:Using extra keyword arguments on:DeprecationWarning"
    )
    if is_stale():
        pytest.exit("the compiled planner is not of these sources: make venv, then again", 2)


@pytest.fixture(scope="session")
def ray_instance() -> Iterator[None]:
    """A local Ray of 8 logical CPUs; it ends with the session, and so do its actors."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    folder = tempfile.mkdtemp(prefix="cp-")  # short: it becomes part of socket paths
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        namespace="cp_ray_tests",
        _temp_dir=folder,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def serve_url(ray_instance: None) -> Iterator[str]:
    """Base address of the one Serve instance; tests add and delete applications by name."""
    from ray import serve

    yield start_serve()
    serve.shutdown()
