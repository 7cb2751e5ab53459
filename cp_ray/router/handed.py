"""What the Router hands a replica on the direct data plane: the plan of a request, in a header.

HAProxy asks the Router where a request goes, sends it there with the Router's answer as a header,
and drops what a client put into it. The replica makes the same prompt of the same body, so of the
plan only the places of its blocks have to travel (docs/decisions/0031). It is signed: HAProxy asks
no Router, and drops nothing, while it knows of none.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
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


_SIGNATURE_BYTES = 16


class Handed(msgspec.Struct, frozen=True, array_like=True, tag=True):
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


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The Router's answer, for the replica to give: HAProxy itself would say no more than 503."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]


class Counted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """It counts among the tenant's requests, and has no plan: the replica finds out why."""


Given = Handed | Refused | Counted


class Seal:
    """What those that share a configuration sign with, and nobody else can."""

    def __init__(self, config_json: str) -> None:
        """config_json: holds the digests of all keys; of those a tenant knows its own."""
        self._key = hashlib.blake2b(config_json.encode(), digest_size=32, person=b"handed").digest()

    def header(self, given: Given) -> str:
        """Plain letters: HAProxy cuts it out of the Router's JSON by a pattern."""
        data = wire.encode(given)
        return urlsafe_b64encode(self._signature(data) + data).decode()

    def read(self, value: str | None) -> Given | None:
        """What was handed; None where nothing was that is signed and can be read."""
        if not value:
            return None
        try:
            signed = urlsafe_b64decode(value)
            data = signed[_SIGNATURE_BYTES:]
            if not hmac.compare_digest(signed[:_SIGNATURE_BYTES], self._signature(data)):
                return None
            given: Given = wire.decode(data, Given)
        except (binascii.Error, WireError, ValueError):
            return None
        return given

    def _signature(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=_SIGNATURE_BYTES).digest()


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


def _digest(plan: PlanRequest) -> bytes:
    return hashlib.blake2b("\0".join((plan.head, *plan.context)).encode(), digest_size=8).digest()
