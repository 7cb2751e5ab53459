"""Every policy of `bench reuse` by its name on the command line, and the cache it is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cp_ray.core.prefix_cache import PrefixCache, Sharing
from cp_ray.errors import ConfigError
from cp_ray.replay.ablation import PARTS, Ablated, Part
from cp_ray.replay.lpm import RadixLpm
from cp_ray.replay.plans import PaperOffline, PlanFile
from cp_ray.replay.policies import POLICIES, AsTheyCame, Policy
from cp_ray.replay.tiers import Cache, TieredCache

ALL: dict[str, Callable[[int | None], Policy]] = {
    **POLICIES,
    "radix_lpm": lambda _: RadixLpm(),
    "lmcache": lambda _: AsTheyCame(),
    "paper_offline": lambda _: PaperOffline(),
}
"""As POLICIES, with the baselines. `plan:FILE` is made from its name."""


def make_policy(name: str, capacity_tokens: int | None) -> Policy:
    """A fresh policy. `NAME-PART` is NAME without that part. ConfigError names those there are."""
    base, _, part = name.rpartition("-")
    if part in PARTS and base:
        return Ablated(make_policy(base, capacity_tokens), _part(part))
    if name.startswith("plan:"):
        return PlanFile(Path(name.removeprefix("plan:")))
    if name not in ALL:
        known = ", ".join((*ALL, "plan:FILE"))
        raise ConfigError(f"--policy: {name!r} is not one of {known}", param="policy")
    return ALL[name](capacity_tokens)


def parts_of(name: str) -> tuple[Part, ...]:
    """What `--ablate` can take away from a policy."""
    if name in ("none", "lmcache"):
        return ()
    return ("schedule",) if name == "radix_lpm" else PARTS


def make_cache(policy: str, capacity_tokens: int | None, sharing: Sharing, limit: int) -> Cache:
    """The cache under a policy, empty. limit: requests whose losses it reports."""
    if policy == "lmcache":
        return TieredCache(capacity_tokens, sharing, limit)
    return PrefixCache(capacity_tokens, 1, sharing=sharing, record_limit=limit)


def _part(name: str) -> Part:
    return next(part for part in PARTS if part == name)
