"""Values that cross boundaries: frozen structs and NewType identities. No behaviour.

gc=False: of those made for every request; no value can hold itself.
"""

from __future__ import annotations

from typing import NewType

import msgspec

BlockId = NewType("BlockId", str)
"""Digest of region and exact rendered bytes of one context block."""
RequestId = NewType("RequestId", str)
ReplicaId = NewType("ReplicaId", str)
"""Serve's unique id of one engine replica process."""
HeadId = NewType("HeadId", str)
"""Digest of every byte before the first block (model, salt, system prompt, earlier turns)."""

Context = tuple[BlockId, ...]
"""Distinct block ids of one request, in order."""


class PlanRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the index needs to know of one request: ids and token counts, never text.

    context: distinct ids, best first. block_tokens: tokens of each, same order and length.
    movable: whether the index may put the blocks in another order.
    predecessor: the request whose prompt this head extends (the conversation's last turn).
    conversation: digest of its name, tenant included. origins: digests of the head and of each
    block without their tenant, where there are several tenants: only sums are made of them.
    traceparent: of the span that waits for the plan, where requests are traced.
    """

    request_id: RequestId
    head: HeadId
    head_tokens: int
    context: Context
    block_tokens: tuple[int, ...]
    tail_tokens: int
    movable: bool = True
    predecessor: RequestId | None = None
    conversation: str | None = None
    origins: tuple[int, ...] = ()
    traceparent: str | None = None


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The plan for one request.

    context: a permutation of the request's. replica: None = balance by load alone.
    branch: head and first search-path element, the unit of grouping; empty = none.
    search_path: slots from the root of the head's tree (paper 4.2), valid when returned.
    reused_tokens: prompt tokens the replica should find cached, in whole engine blocks.
    reason: "holder" (has some of the prefix), "load" (nothing to reuse) or "passthrough".
    estimated_ttft_s: seconds until the first token, should the replica do as usual.
    estimated_prefill_s: of them, those of its own prefill.
    """

    request_id: RequestId
    context: Context
    replica: ReplicaId | None
    branch: str
    search_path: tuple[int, ...]
    reused_tokens: int
    reason: str
    estimated_ttft_s: float = 0.0
    estimated_prefill_s: float = 0.0


class ReplicaInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a replica tells of itself when it is ready.

    page_size: tokens of one engine cache block. capacity_tokens: tokens its cache holds.
    step_tokens: most that its engine computes in one step, shared by all prompts; 0 = one prompt
    at a time, or not told.
    """

    replica: ReplicaId
    page_size: int
    capacity_tokens: int
    step_tokens: int = 0


class Eviction(msgspec.Struct, frozen=True, array_like=True):
    """`tokens_left` leading prompt tokens of the request remain usable (0 = the paper's case)."""

    request_id: RequestId
    tokens_left: int


class EvictionReport(msgspec.Struct, frozen=True, array_like=True, tag="evicted"):
    """What one replica's cache lost since report `seq - 1` of the same epoch.

    epoch: incarnation of the cache; a new one forgets all that was held before.
    """

    replica: ReplicaId
    epoch: int
    seq: int
    evicted: tuple[Eviction, ...]


class Dump(msgspec.Struct, frozen=True, array_like=True, tag="dump"):
    """All that one replica holds, numbered among its reports: it stands for those before it.

    held: leading prompt tokens that remain usable of each request it follows.
    """

    replica: ReplicaId
    epoch: int
    seq: int
    held: dict[RequestId, int]


ReplicaMessage = EvictionReport | Dump


class DumpRequest(msgspec.Struct, frozen=True, array_like=True, tag="dump_request"):
    """The index asks a replica for a dump.

    rebuild: what the replica believes of its engine is wrong; it begins a new epoch instead.
    """

    replica: ReplicaId
    rebuild: bool = False


class Routed(msgspec.Struct, frozen=True, array_like=True, tag="routed"):
    """The replica that really took the request (a spill differs from the plan)."""

    request_id: RequestId
    replica: ReplicaId


class FirstToken(msgspec.Struct, frozen=True, array_like=True, tag="first_token"):
    """Prefill is done: its load is freed."""

    request_id: RequestId


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="settled"):
    """The request ended. ok: its prompt was prefilled whole. cached_tokens: the engine's count.

    held_tokens: what the replica's residency held of the prompt when the engine scheduled it;
    None = not known, so it is no audit.
    """

    request_id: RequestId
    cached_tokens: int
    ok: bool
    held_tokens: int | None = None


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag="arrived"):
    """A replica has the request, and with it the plan that travelled there."""

    request_id: RequestId


Feedback = Routed | FirstToken | Settled | Arrived
