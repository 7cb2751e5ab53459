"""`make test-base`: the minimal install, without any extra, serves the simulated engine.

Run by the python of an environment that has cp_ray's own dependencies and nothing else.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from cp_ray.config import AppConfig
from cp_ray.demo.own_serve import own_serve
from tests.e2e.support import application, ask

ROOT = Path(__file__).resolve().parents[2]
ABSENT = ("torch", "vllm", "sglang", "faiss", "mem0", "matplotlib", "gguf", "pytest")
"""What extras and the checks bring; had one of them come along, this would prove nothing."""


def main() -> int:
    """Raise at the first thing that does not work."""
    found = [name for name in ABSENT if importlib.util.find_spec(name) is not None]
    assert not found, f"this is no minimal install: it has {found}"
    for command in (["doctor", "engine=simulated"], ["bench", "index", "--n", "200"]):
        subprocess.run([sys.executable, "-m", "cp_ray.cli", *command], check=True, cwd=ROOT)
    config = AppConfig(engine="simulated", model="sim")
    with own_serve(4, root=ROOT) as url, application(url, "base", config) as base:
        documents = ["one " * 80, "two " * 80]
        ask(base, documents, model="sim")
        again = ask(base, documents, "another question?", model="sim")
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0, "the second request reuses the first one's documents"
    print(f"the minimal install serves: {cached} tokens reused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
