"""`cp-ray serve`: say what is wrong in one line, not in a replica's log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cp_ray.config import parse_settings
from cp_ray.doctor import diagnose
from cp_ray.serve_config import check_serve_config
from cp_ray.workers.models import resolve_model


def check_before_serving(words: Sequence[str]) -> list[str] | None:
    """Arguments for `serve run`, or None after saying what stands in the way.

    words: KEY=VALUE settings, or one Serve config file. Prepares the model, with its progress
    bar, before any replica needs it. Raises ConfigError for a setting or file that is wrong.
    """
    if len(words) == 1 and Path(words[0]).suffix in (".yaml", ".yml"):
        check_serve_config(Path(words[0]))
        return [words[0]]
    config = parse_settings(words)
    missing = [finding for finding in diagnose(config) if finding.ok is False]
    for finding in missing:
        sys.stderr.write(f"cp-ray: {finding.name}: {finding.detail}\n    -> {finding.fix}\n")
    if missing:
        return None
    if config.engine != "simulated":
        resolve_model(config.model)
    return ["cp_ray.app", *words]
