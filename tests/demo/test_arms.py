import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cp_ray.config import parse_settings
from cp_ray.demo.arms import Running, running, settings, stop
from cp_ray.demo.engines import ARMS, engine_config
from cp_ray.errors import ConfigError


@pytest.mark.parametrize("engine", ["vllm", "simulated"])
def test_arms_differ_in_reuse_and_in_nothing_else(engine: str) -> None:
    configs = [engine_config(engine, "smollm2", 2, arm).model_dump() for arm in ARMS]
    assert [config.pop("reuse") for config in configs] == ["plain", "route", "full"]
    assert configs[0] == configs[1] == configs[2]


def test_settings_read_back_as_the_same_configuration() -> None:
    config = parse_settings(
        ["engine=simulated", "replicas=3", "reuse=route", 'engine_kwargs={"seed": 1}']
    )
    assert parse_settings(settings(config)) == config


def test_keys_and_names_come_back_too() -> None:
    words = ['api_keys={"a": "k1", "b": "k2 k3"}', "share_public=a,b", "redis_url=redis://:p@host"]
    config = parse_settings(["engine=simulated", *words])
    assert parse_settings(settings(config)).to_json() == config.to_json()


def test_a_wrong_number_of_replicas_names_the_setting() -> None:
    with pytest.raises(ConfigError, match="replicas"):
        engine_config("simulated", "smollm2", 0, "full")


def test_an_application_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    config = parse_settings(["tensor_parallel_size=2", "gpus_per_replica=1"])
    with (
        pytest.raises(ConfigError, match="set gpus_per_replica to 2"),
        running("broken", config, tmp_path),
    ):
        pytest.fail("it must not start")
    assert [p for p in psutil.Process().children() if "cp_ray.demo.host" in p.cmdline()] == []


def test_a_child_that_outlives_its_host_is_ended(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(60)'], start_new_session=True); sys.stdin.read()"
    )
    host = psutil.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    app = Running("", host, tmp_path / "log", tmp_path / "folder")
    deadline = time.monotonic() + 10
    while not app.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    (child,) = app.processes()
    stop(app)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
