"""One application on a Ray of its own: `python -m cp_ray.demo.host PORT FOLDER key=value ...`.

A child process of the demo. FOLDER is empty, ours, and removed by the demo. Says on stdout how
far the start is, one word a line (`STAGES`), and serves until its stdin is closed or it is told
to end; then it stops Serve and Ray.
"""

from __future__ import annotations

import math
import os
import signal
import sys

from cp_ray.config import AppConfig, parse_settings
from cp_ray.errors import CpRayError

STAGES = ("ray", "serve", "replicas")
APP = "cp"


def main(argv: list[str]) -> int:
    """Serve until stdin is closed, or SIGTERM."""
    port, folder, config = int(argv[0]), argv[1], parse_settings(argv[2:])
    signal.signal(signal.SIGTERM, _interrupt)
    # What our processes leave behind when they are killed (an embedded Redis) lies there too.
    os.environ["TMPDIR"] = folder
    try:
        _serve(port, config, folder)
    except KeyboardInterrupt:
        return 0
    except CpRayError as error:
        sys.stderr.write(f"{error.message}\n")
        return 2
    finally:
        _stop()
    return 0


def _serve(port: int, config: AppConfig, folder: str) -> None:
    import ray
    from ray import serve

    from cp_ray.deployment import app

    application = app(config)  # what cannot go together fails before anything starts
    needed = config.replicas * config.cpus_per_replica + 2
    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, math.ceil(needed)),
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=256 << 20,
        _temp_dir=folder,
    )
    _say("ray")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    _say("serve")
    serve.run(application, name=APP)
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
