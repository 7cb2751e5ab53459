"""Start the application for one arm, wait until it answers, and leave nothing running.

Every arm gets fresh engine processes, so all caches are equally cold.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
from pydantic import SecretStr
from tqdm import tqdm

from cp_ray.config import AppConfig
from cp_ray.demo.host import STAGES
from cp_ray.demo.own_serve import free_port
from cp_ray.errors import ConfigError

START_S = 420.0
STOP_S = 60.0


class Running(msgspec.Struct, frozen=True):
    """A started application. host: the process that owns its Ray, and all its processes.

    folder: what its processes write, removed when it stops.
    """

    url: str
    host: psutil.Popen
    log: Path
    folder: Path

    def processes(self) -> list[psutil.Process]:
        """Every process under the host that still runs: ours alone, never another Ray's."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.host.children(recursive=True)
        return []


@contextlib.contextmanager
def running(name: str, config: AppConfig, logs: Path) -> Iterator[Running]:
    """Serve `config` while the block runs; `name` heads the bar and the log file.

    Raises ConfigError with the end of the log when the application does not start.
    """
    app = start(name, config, logs)
    try:
        yield app
    finally:
        stop(app)


def start(name: str, config: AppConfig, logs: Path) -> Running:
    """Serve `config` until `stop`. Raises as `running` does, and then leaves nothing running."""
    port = free_port()
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{name}.log"
    # Short: sockets live under it, and their paths may have 107 bytes.
    folder = tempfile.mkdtemp(prefix="cp-demo-")
    with log.open("wb") as stderr:
        process = psutil.Popen(
            [sys.executable, "-m", "cp_ray.demo.host", str(port), folder, *settings(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=_environment(),
            # A Ctrl-C is for the demo, which then ends its host in order.
            start_new_session=True,
        )
    app = Running(f"http://127.0.0.1:{port}", process, log, Path(folder))
    try:
        _wait(name, app)
    except BaseException:
        stop(app)
        raise
    return app


def stop(app: Running) -> None:
    """Ask the host to stop; what then still runs of its processes is ended here."""
    children = app.processes()
    if app.host.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            app.host.stdin.close()
    try:
        app.host.wait(STOP_S)
    except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
        children += [child for child in app.processes() if child not in children]
        app.host.kill()
        app.host.wait()
    # psutil compares start times too: a reused pid is not ours, and is not touched.
    _, alive = psutil.wait_procs(children, timeout=5)
    for child in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(alive, timeout=5)
    shutil.rmtree(app.folder, ignore_errors=True)


def settings(config: AppConfig) -> list[str]:
    """The key=value arguments that give `config` back, as one types them after `serve run`."""
    given = config.model_dump(exclude_defaults=True)
    return [f"{key}={_typed(value)}" for key, value in given.items()]


def _typed(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, dict):
        return msgspec.json.encode(value, enc_hook=_typed).decode()
    return str(value)


def _wait(name: str, app: Running) -> None:
    said: list[str] = []
    reader = threading.Thread(target=_read, args=(app.host, said), daemon=True)
    reader.start()
    deadline = time.monotonic() + START_S
    with tqdm(total=len(STAGES) + 1, desc=f"{name}: start", unit="step", leave=False) as bar:
        while True:
            bar.n = len([stage for stage in STAGES if stage in said])
            bar.refresh()
            if app.host.poll() is not None:
                raise ConfigError(f"the application ended at its start:\n{_end_of(app.log)}")
            if bar.n == len(STAGES) and _ready(app.url):
                return
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the application is not ready after {START_S:.0f} s:\n{_end_of(app.log)}"
                )
            time.sleep(0.5)


def _read(process: psutil.Popen, said: list[str]) -> None:
    if process.stdout is not None:
        said.extend(line.decode(errors="replace").strip() for line in process.stdout)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def _environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    return env | quiet | {"PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1"}


def _end_of(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
