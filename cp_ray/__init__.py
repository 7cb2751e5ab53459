"""cp_ray: long-context LLM inference on a Ray cluster that reuses context.

`serve run cp_ray.app` finds `app` here. It is loaded on first use: importing cp_ray imports no
Ray. There is no module cp_ray/app.py on purpose: a submodule would shadow the attribute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cp_ray.deployment import app as app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name == "app":
        from cp_ray.deployment import app as builder

        return builder
    raise AttributeError(f"module 'cp_ray' has no attribute {name!r}")
