"""Every policy of `bench reuse` by its name on the command line, and the cache it is given."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from cp_ray.core.limits import Limits
from cp_ray.core.prefix_cache import PrefixCache, Sharing
from cp_ray.errors import ConfigError
from cp_ray.replay.ablation import PARTS, Ablated, Part
from cp_ray.replay.lpm import RadixLpm
from cp_ray.replay.plans import PaperOffline, PlanFile
from cp_ray.replay.policies import POLICIES, AsTheyCame, Indexed, Offline, Policy
from cp_ray.replay.tiers import Cache, TieredCache

ALL: dict[str, Callable[[int | None], Policy]] = {
    **POLICIES,
    "radix_lpm": lambda _: RadixLpm(),
    "lmcache": lambda _: AsTheyCame(),
    "paper_offline": lambda _: PaperOffline(),
}
"""As POLICIES, with the baselines. `plan:FILE` is made from its name."""


_LIMIT = re.compile(r"(top|move)(\d+)")


def make_policy(name: str, capacity_tokens: int | None) -> Policy:
    """A fresh policy. ConfigError names those there are.

    `NAME-PART` is NAME without that part; `online-topN` and `offline-topN` keep the N best blocks
    in front, and `-moveN` moves no block by more than N places (core/limits.py).
    """
    base, _, part = name.rpartition("-")
    if is_limit(part) and base:
        return _limited(name, capacity_tokens)
    if part in PARTS and base:
        return Ablated(make_policy(base, capacity_tokens), _part(part))
    if name.startswith("plan:"):
        return PlanFile(Path(name.removeprefix("plan:")))
    if name not in ALL:
        known = ", ".join((*ALL, "plan:FILE"))
        raise ConfigError(f"--policy: {name!r} is not one of {known}", param="policy")
    return ALL[name](capacity_tokens)


def _limited(name: str, capacity_tokens: int | None) -> Policy:
    """NAME followed by one `-topN`, one `-moveN`, or both."""
    base, *given = name.split("-")
    values: dict[str, int] = {}
    for part in given:
        found = _LIMIT.fullmatch(part)
        if found is None or found[1] in values:
            raise ConfigError(f"--policy: {name!r}: {part!r} is no further limit", param="policy")
        values[found[1]] = int(found[2])
    limits = Limits(values.get("top", 0), values.get("move"))
    if base == "online":
        return Indexed("exact", capacity_tokens, limits)
    if base == "offline":
        return Offline(limits=limits)
    raise ConfigError(f"--policy: {name!r}: only online and offline have limits", param="policy")


def has_arm(name: str, part: str) -> bool:
    """Whether `--ablate` can take the part away from a policy, or put it under the limit."""
    if is_limit(part):
        return name in ("online", "offline")
    if name == "radix_lpm":
        return part == "schedule"
    return name not in ("none", "lmcache")


def is_limit(part: str) -> bool:
    """Whether a part is `topN` or `moveN`."""
    return _LIMIT.fullmatch(part) is not None


def make_cache(policy: str, capacity_tokens: int | None, sharing: Sharing, limit: int) -> Cache:
    """The cache under a policy, empty. limit: requests whose losses it reports."""
    if policy == "lmcache":
        return TieredCache(capacity_tokens, sharing, limit)
    return PrefixCache(capacity_tokens, 1, sharing=sharing, record_limit=limit)


def _part(name: str) -> Part:
    return next(part for part in PARTS if part == name)
