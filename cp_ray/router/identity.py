"""What the accounts of lost reuse need of a request beside its plan; digests, never names."""

from __future__ import annotations

import hashlib

import msgspec

from cp_ray.core.types import PlanRequest
from cp_ray.router.assembly import Prepared, Request
from cp_ray.router.auth import Tenant


def identified(
    prepared: Prepared, request: Request, tenant: Tenant, *, several_tenants: bool
) -> PlanRequest:
    """The plan request with its conversation, and, with several tenants, its origins."""
    name = getattr(request, "conversation", None)
    conversation = None if name is None else _digest(tenant.name, name)
    origins: tuple[int, ...] = ()
    if several_tenants:
        texts = {block.id: block.text for block in prepared.blocks}
        head = "\0".join(piece.text for piece in prepared.head)
        context = prepared.plan.context
        origins = (_number(head), *(_number(texts[block]) for block in context))
    return msgspec.structs.replace(prepared.plan, conversation=conversation, origins=origins)


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=12).hexdigest()


def _number(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")
