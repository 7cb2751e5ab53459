"""Every policy of `bench fleet` by its name on the command line."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay.fleet.paper_order import PaperOrder
from cp_ray.replay.fleet.policies.cp_ray import CpRay
from cp_ray.replay.fleet.policies.dynamo import Dynamo
from cp_ray.replay.fleet.policies.est_ttft import EstTtft
from cp_ray.replay.fleet.policies.least_loaded import LeastLoaded, PowerOfTwo
from cp_ray.replay.fleet.policies.llm_d import LlmD
from cp_ray.replay.fleet.policies.lmetric import LMetric
from cp_ray.replay.fleet.policies.max_prefix import MaxPrefix
from cp_ray.replay.fleet.policies.paper import Paper
from cp_ray.replay.fleet.policies.preble import Preble
from cp_ray.replay.fleet.policies.ray_prefix import RayPrefix
from cp_ray.replay.fleet.policies.round_robin import RoundRobin
from cp_ray.replay.fleet.policies.session_affinity import SessionAffinity
from cp_ray.replay.fleet.policies.sglang import Sglang
from cp_ray.replay.fleet.policies.without import ARMS
from cp_ray.replay.fleet.router import Router


class Fleet(msgspec.Struct, frozen=True):
    """What a policy is told of the fleet before the first request.

    step_tokens: as `core.types.ReplicaInfo`.
    """

    replicas: int
    page_size: int
    capacity_tokens: int
    seed: int
    step_tokens: int = 0


RIVALS: dict[str, Callable[[Fleet], Router]] = {
    "round_robin": lambda fleet: RoundRobin(fleet.seed),
    "least_loaded": lambda fleet: LeastLoaded(fleet.seed),
    "power_of_two": lambda fleet: PowerOfTwo(fleet.seed),
    "session_affinity": lambda fleet: SessionAffinity(fleet.seed),
    "max_prefix": lambda fleet: MaxPrefix(fleet.seed),
    "ray_prefix": lambda fleet: RayPrefix(fleet.seed, fleet.replicas),
    "sglang": lambda fleet: Sglang(fleet.seed, fleet.replicas),
    "dynamo": lambda fleet: Dynamo(fleet.seed, fleet.replicas),
    "llm_d": lambda fleet: LlmD(fleet.seed),
    "preble": lambda fleet: Preble(fleet.seed, fleet.replicas),
    "lmetric": lambda fleet: LMetric(fleet.seed),
    "est_ttft": lambda fleet: EstTtft(fleet.seed),
}
"""These keep the order given; `--order paper` puts the paper's in front."""
OURS: dict[str, Callable[[Fleet], Router]] = {
    "paper": lambda fleet: Paper(fleet.seed),
    "cp_ray": lambda fleet: CpRay(*_ours(fleet)),
}
"""These order by themselves (`--order ours`)."""


def _ours(fleet: Fleet) -> tuple[int, int, int, int]:
    """What engines tell of themselves."""
    return fleet.replicas, fleet.page_size, fleet.capacity_tokens, fleet.step_tokens


def make_router(policy: str, order: str, fleet: Fleet) -> Router:
    """A fresh router. Raises ConfigError naming those there are."""
    if policy in OURS:
        return OURS[policy](fleet)
    base, _, part = policy.partition("-")
    if base == "cp_ray" and part in ARMS:
        return ARMS[part](*_ours(fleet))
    if policy not in RIVALS:
        known = ", ".join((*RIVALS, *OURS, *(f"cp_ray-{part}" for part in ARMS)))
        raise ConfigError(f"--policy: {policy!r} is not one of {known}", param="policy")
    router = RIVALS[policy](fleet)
    return PaperOrder(router) if order == "paper" else router
