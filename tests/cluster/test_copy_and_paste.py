"""The commands of cluster/README.md, run as they stand there, by a shell."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(540)]
ROOT = Path(__file__).parents[2]
PORT = 6399
FOLDER = Path("/tmp/cp2")  # noqa: S108 - the block names it


def block() -> str:
    """From the second line on: the first one installs what runs this test."""
    text = (ROOT / "cluster/README.md").read_text().partition("## Two emulated hosts")[2]
    (found,) = re.findall(r"```bash\nmake venv\n(.*?)```", text, flags=re.DOTALL)
    return str(found)


def of_this_cluster() -> list[psutil.Process]:
    """Ray's processes name the port of their control service, or the folder of the session."""
    marks = (f"127.0.0.1:{PORT}", f"--gcs_server_port={PORT}", str(FOLDER))
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if any(mark in words for mark in marks) and process.pid != os.getpid():
            found.append(process)
    return found


def test_two_hosts_by_copy_and_paste() -> None:
    commands = block()
    assert str(FOLDER) in commands
    assert f":{PORT}" in commands
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env.pop("RAY_TMPDIR", None)
    try:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        first, second = (
            json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"id"')
        )
    finally:
        for process in of_this_cluster():
            family = [process, *process.children(recursive=True)]
            for one in family:
                try:
                    one.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue
        shutil.rmtree(FOLDER, ignore_errors=True)
    assert first["cp_ray"]["order"] == ["documents.0", "documents.1"]
    assert second["cp_ray"]["order"] == ["documents.1", "documents.0"]
    assert second["cp_ray"]["replica"] == first["cp_ray"]["replica"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    assert "trusted 4/4" in ran.stdout
