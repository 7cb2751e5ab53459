"""CPU that the processes of a local Ray take, by kind."""

from __future__ import annotations

import contextlib
from collections import defaultdict

import psutil

KINDS = {
    "ray::ServeController": "controller",
    "ray::ProxyActor": "proxy",
    "ray::IndexActor": "index",
    "valkey-server": "redis",
    "raylet": "ray",
    "gcs_server": "ray",
}
"""What the first word of a command line holds."""
SERVE_REPLICA = "ray::ServeReplica:"

Taken = dict[str, float]
"""Seconds since each process began, by kind."""


def taken() -> Taken:
    """All processes under this one. "APP Engine" and "APP Router" are an application's."""
    found: Taken = defaultdict(float)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[_kind(process.cmdline())] += times.user + times.system
    return dict(found)


def between(before: Taken, after: Taken) -> Taken:
    """Seconds taken meanwhile; a process that has ended counts nothing."""
    return {kind: max(0.0, seconds - before.get(kind, 0.0)) for kind, seconds in after.items()}


def pids() -> dict[str, set[int]]:
    """Process ids of what serves requests, by kind."""
    found: dict[str, set[int]] = defaultdict(set)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            kind = _kind(process.cmdline())
            if kind not in ("other", "ray"):
                found[kind].add(process.pid)
    return dict(found)


def _kind(words: list[str]) -> str:
    name = words[0] if words else ""
    if name.startswith(SERVE_REPLICA):
        app, deployment = name.removeprefix(SERVE_REPLICA).split(":")[:2]
        return f"{app} {deployment.split('.')[0]}"
    return next((kind for part, kind in KINDS.items() if part in name), "other")
