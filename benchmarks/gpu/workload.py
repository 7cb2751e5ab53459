"""Token-id workloads: a trace as a policy of `bench reuse` sends it. Deterministic.

Order of requests and of blocks are exactly those of `cp-ray bench reuse` (its cache has pages of
one token); what the engine should count is predicted apart, with the engine's page size.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from cp_ray.core.pages import Piece
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError
from cp_ray.replay.ablation import Ablated
from cp_ray.replay.conversations import pieces_of
from cp_ray.replay.plans import PlanFile
from cp_ray.replay.playback import Playback
from cp_ray.replay.policies import Policy, Sent
from cp_ray.replay.registry import make_policy
from cp_ray.replay.trace import TraceRequest, read_trace

LOWEST_ID = 100
"""Ids below are left to special tokens."""
UNCACHED = "uncached"
"""The trace as retrieved, where no request may find another's pages."""


class Prompt(msgspec.Struct, frozen=True):
    """One request as it goes to the engine: opaque pieces, whose tokens their keys decide."""

    request_id: RequestId
    pieces: tuple[Piece, ...]

    @property
    def tokens(self) -> int:
        """Length of the prompt."""
        return sum(length for _, length in self.pieces)


class Workload(msgspec.Struct, frozen=True):
    """Prompts in the order of sending.

    predicted: cached tokens the engine should count, prompt by prompt. reuse_hit: hit ratio of
    `bench reuse`, of block tokens. block_tokens: of all prompts together.
    """

    prompts: tuple[Prompt, ...]
    predicted: tuple[int, ...]
    reuse_hit: float
    block_tokens: int

    @property
    def tokens(self) -> int:
        """All prompts together."""
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def computed(self) -> int:
        """Tokens that the engine should have to compute."""
        return self.tokens - sum(self.predicted)


class Kit(msgspec.Struct, frozen=True):
    """A folder made by `benchmarks.gpu.prepare`: a trace, and plans made ahead of time."""

    folder: Path

    def plan_of(self, policy: str, requests: int) -> Path | None:
        """The plan of an offline policy for so many requests of the trace, where there is one."""
        file = self.folder / f"{policy}-{requests}.jsonl"
        return file if file.is_file() else None

    def policy(self, name: str, requests: int, capacity_tokens: int | None) -> Policy:
        """A fresh policy. `plan:FILE` means a file of the kit."""
        if name.startswith("plan:"):
            return PlanFile(self.folder / name.removeprefix("plan:"))
        made = self.plan_of(name, requests)
        if made is not None:
            return PlanFile(made)
        return make_policy("none" if name == UNCACHED else name, capacity_tokens)

    def workload(
        self,
        policy: str,
        *,
        requests: int,
        concurrency: int,
        capacity_tokens: int | None,
        page_size: int,
    ) -> Workload:
        """The first requests of the trace under a policy. capacity_tokens: None = no limit."""
        trace = read_trace(self.folder, requests=requests)
        made = _Recorded(self.policy(policy, requests, capacity_tokens))
        if policy == UNCACHED:
            prompts = tuple(_prompt(Sent(one, one.context)) for one in trace.requests)
            blocks = sum(sum(one.block_tokens) for one in trace.requests)
            return Workload(prompts, (0,) * len(prompts), 0.0, blocks)
        cache = PrefixCache(capacity_tokens, 1, record_limit=requests)
        playback = Playback(made, cache, leaders=False)
        playback.play(made.arrange(trace.requests), concurrency, False, policy)
        asked = sum(one.asked for one in playback.played)
        prompts = tuple(_prompt(sent) for sent in made.sent)
        if len(prompts) != len(trace.requests):
            raise ConfigError(f"{policy} sent {len(prompts)} of {len(trace.requests)} requests")
        return Workload(
            prompts,
            predict(prompts, capacity_tokens, page_size),
            sum(one.cached for one in playback.played) / asked,
            asked,
        )


def predict(
    prompts: Sequence[Prompt], capacity_tokens: int | None, page_size: int
) -> tuple[int, ...]:
    """Cached tokens of each prompt, sent in this order, in vLLM's cache.

    One after the other, whatever the concurrency: an engine prefills in order of arrival, shares
    pages within the step, and an answer of one token ends with its prefill, so what waits behind
    it holds no pages.
    """
    cache = PrefixCache(capacity_tokens, page_size, duplicates=True, record_limit=1)
    found = []
    for prompt in prompts:
        cached = cache.admit(prompt.request_id, prompt.pieces)
        if cached is None:
            raise ConfigError(
                f"request {prompt.request_id} has {prompt.tokens} tokens, the cache "
                f"{capacity_tokens}; give it more"
            )
        cache.prefilled(prompt.request_id)
        cache.release(prompt.request_id)
        found.append(cached)
    return tuple(found)


def token_ids(pieces: Sequence[Piece], vocab: int) -> list[int]:
    """The prompt's tokens: pseudo-random by each piece's key, the same on every machine."""
    ids: list[int] = []
    for key, length in pieces:
        ids += (
            _ids(repr(key), vocab)[:length] if length <= _KEPT else _made(repr(key), length, vocab)
        )
    return ids


_KEPT = 4096
"""Pieces up to this length are kept for their next prompt."""


@functools.lru_cache(maxsize=4096)
def _ids(key: str, vocab: int) -> list[int]:
    return _made(key, _KEPT, vocab)


def _made(key: str, length: int, vocab: int) -> list[int]:
    raw = hashlib.shake_128(key.encode()).digest(4 * length)
    numbers = np.frombuffer(raw, dtype="<u4") % (vocab - LOWEST_ID) + LOWEST_ID
    made: list[int] = numbers.tolist()
    return made


def _prompt(sent: Sent) -> Prompt:
    return Prompt(sent.request.request_id, tuple(pieces_of(sent)))


class _Recorded(Ablated):
    """A whole policy that keeps what it sent, in order."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner, "leaders")
        self.sent: list[Sent] = []

    def plan(self, window: Sequence[TraceRequest]) -> list[Sent]:
        """The inner plan."""
        planned = super().plan(window)
        self.sent += planned
        return planned
