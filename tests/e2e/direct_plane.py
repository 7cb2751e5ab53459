"""`python -m tests.e2e.direct_plane`: an application on the direct data plane, on a Ray of its own.

A process of its own, because Ray Serve reads its environment when it is imported. It prints the
address when the application is up, and ends when its standard input does.
"""

from __future__ import annotations

import sys

from cp_ray.demo.own_serve import direct_environment, own_serve

KEYS = {"acme": "one", "other": "two"}
OPERATOR = "three"
SETTINGS = {
    "engine": "simulated",
    "model": "sim",
    "replicas": 2,
    "decode_tokens_per_s": 1000,
    "cpus_per_replica": 0.1,
    "data_plane": "direct",
    "api_keys": KEYS,
    "operator_key": OPERATOR,
}


def main() -> None:
    """Serve until nobody writes to us any more."""
    with direct_environment():
        from ray import serve

        from cp_ray.config import AppConfig
        from cp_ray.deployment import app

        with own_serve(8) as base:
            serve.run(app(AppConfig.model_validate(SETTINGS)), name="direct")
            print(base, file=sys.__stdout__, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
