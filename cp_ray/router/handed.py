"""What the Router hands a replica on the direct data plane: the plan of a request, in a header.

HAProxy asks the Router where a request goes, sends it there with the Router's answer as a header,
and drops what a client put into it. The replica makes the same prompt of the same body, so of the
plan only the places of its blocks have to travel (docs/decisions/0031).
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec

from cp_ray.core.types import PlanRequest, ReplicaId, RequestId, Step
from cp_ray.errors import WireError
from cp_ray.store import wire

HEADER = "x-serve-router-cp-ray"
"""Only names that begin with "x-serve-router-" are HAProxy's to set and no client's."""
AUTHORIZATION = "authorization"
"""The one header of the client that HAProxy can be told to show the Router."""


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """One request's plan. of: digest of the prompt that was planned.

    places: which of the request's own blocks comes first, second, ... The rest as in Step.
    routed_ms: from the body read in the Router to this.
    """

    request_id: RequestId
    of: bytes
    places: tuple[int, ...]
    replica: ReplicaId | None
    branch: str
    search_path: tuple[int, ...]
    reused_tokens: int
    reason: str
    estimated_ttft_s: float
    estimated_prefill_s: float
    routed_ms: float

    def step(self, plan: PlanRequest) -> Step | None:
        """The plan, as one of this very prompt; None when it is of another."""
        if self.of != _digest(plan) or sorted(self.places) != list(range(len(plan.context))):
            return None
        order = tuple(plan.context[place] for place in self.places)
        if not plan.movable and order != plan.context:
            return None
        return Step(
            self.request_id,
            order,
            self.replica,
            self.branch,
            self.search_path,
            self.reused_tokens,
            self.reason,
            self.estimated_ttft_s,
            self.estimated_prefill_s,
        )

    def header(self) -> str:
        """Plain letters: HAProxy cuts it out of the Router's JSON by a pattern."""
        return urlsafe_b64encode(wire.encode(self)).decode()


class Refused(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a request that gets no plan, for the replica to give: HAProxy would say 503."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]

    def header(self) -> str:
        """As that of a plan, with a mark before it."""
        return "!" + urlsafe_b64encode(wire.encode(self)).decode()


def hand(plan: PlanRequest, step: Step, routed_ms: float) -> Handed:
    """What a replica needs to follow `step`, a plan of `plan`."""
    place_of = {block: place for place, block in enumerate(plan.context)}
    return Handed(
        plan.request_id,
        _digest(plan),
        tuple(place_of[block] for block in step.context),
        step.replica,
        step.branch,
        step.search_path,
        step.reused_tokens,
        step.reason,
        step.estimated_ttft_s,
        step.estimated_prefill_s,
        routed_ms,
    )


def read_header(value: str | None) -> Handed | Refused | None:
    """What was handed; None where there is nothing that can be read: then nothing was planned."""
    if not value:
        return None
    kind: type[Handed] | type[Refused] = Refused if value[0] == "!" else Handed
    try:
        return wire.decode(urlsafe_b64decode(value.removeprefix("!")), kind)
    except (binascii.Error, WireError, ValueError):
        return None


def _digest(plan: PlanRequest) -> bytes:
    return hashlib.blake2b("\0".join((plan.head, *plan.context)).encode(), digest_size=8).digest()
