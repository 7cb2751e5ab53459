"""One application on a Ray of its own: `python -m cp_ray.demo.host PORT key=value ...`.

A child process of the demo. Says on stdout how far the start is, one word a line (`STAGES`), and
serves until its stdin is closed or it is told to end; then it stops Serve and Ray.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from cp_ray.config import AppConfig, parse_settings

STAGES = ("ray", "serve", "replicas")
APP = "cp"


def main(argv: list[str]) -> int:
    """Serve until stdin is closed, or SIGTERM."""
    port, config = int(argv[0]), parse_settings(argv[1:])
    signal.signal(signal.SIGTERM, _interrupt)
    # Short: sockets live under it, and their paths may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="cp-demo-"))
    # What our processes leave behind when they are killed (an embedded Redis) goes with it.
    os.environ["TMPDIR"] = str(folder)
    try:
        _serve(port, config, folder)
    except KeyboardInterrupt:
        return 0
    finally:
        _stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _serve(port: int, config: AppConfig, folder: Path) -> None:
    import ray
    from ray import serve

    from cp_ray.deployment import app

    needed = config.replicas * config.cpus_per_replica + 2
    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, math.ceil(needed)),
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=256 << 20,
        _temp_dir=str(folder),
    )
    _say("ray")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    _say("serve")
    serve.run(app(config), name=APP)
    _say("replicas")
    sys.stdin.read()


def _stop() -> None:
    import ray
    from ray import serve

    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()


def _say(stage: str) -> None:
    sys.stdout.write(f"{stage}\n")
    sys.stdout.flush()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
