"""`make schemathesis`: the real application against its own OpenAPI document.

Ray, Serve, Redis and the simulated engine, with keys; schemathesis in an environment of its own
(its packages have no business beside an engine's) sends what the document allows and what it
forbids, and checks every answer against it. Exit status: schemathesis' own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from cp_ray.config import AppConfig
from tests.e2e.support import application

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("schemathesis.toml")
KEY, NAME = "key-of-the-fuzzer", "openapi"


def main() -> int:
    """Run once."""
    parser = argparse.ArgumentParser(prog="python -m tests.openapi", description=__doc__)
    parser.add_argument("--schemathesis", default=".venv-schemathesis/bin/schemathesis")
    parser.add_argument("--max-examples", type=int, default=200, help="per operation and phase")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray import serve

    folder = tempfile.mkdtemp(prefix="cp-")
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        _temp_dir=folder,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    config = AppConfig.model_validate(
        {
            "engine": "simulated",
            "model": "sim",
            "decode_tokens_per_s": 100_000,
            "canary_share": 0.1,  # else there is nothing to score
            "max_output_tokens": 16,
            "api_keys": {"fuzzer": KEY},
            "operator_key": KEY,
        }
    )
    try:
        with application(f"http://127.0.0.1:{port}", NAME, config) as base:
            command = [args.schemathesis, "--config-file", str(CONFIG), "run"]
            command += [f"{base}/openapi.json", "--header", f"Authorization: Bearer {KEY}"]
            command += ["--max-examples", str(args.max_examples), "--seed", str(args.seed)]
            return subprocess.run(command, check=False).returncode
    finally:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
