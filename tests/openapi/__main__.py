"""`make schemathesis`: the real application against its own OpenAPI document.

Ray, Serve, Redis and the simulated engine, with keys; schemathesis in an environment of its own
(its packages have no business beside an engine's) sends what the document allows and what it
forbids, and checks every answer against it. Exit status: schemathesis' own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from cp_ray.config import AppConfig
from cp_ray.demo.own_serve import own_serve
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
    with own_serve(4, root=ROOT) as url, application(url, NAME, config) as base:
        command = [args.schemathesis, "--config-file", str(CONFIG), "run"]
        command += [f"{base}/openapi.json", "--header", f"Authorization: Bearer {KEY}"]
        command += ["--max-examples", str(args.max_examples), "--seed", str(args.seed)]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
