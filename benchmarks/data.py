"""Where the traces and texts of the benchmarks lie."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """CP_RAY_DATA, or ../shared/data beside the repository."""
    return Path(os.environ.get("CP_RAY_DATA", Path(__file__).parents[2] / "shared/data"))
