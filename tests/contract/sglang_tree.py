"""SGLang's own radix cache without a model, driven as its scheduler does it.

A request's prompt is in the tree, and locked, from its prefill to its end; of an answer nothing is
kept. Its events are SGLang's own.
"""

from __future__ import annotations

import time
from array import array
from typing import Any

import msgspec


class Allocator:
    """The cache's memory: what the tree gives back is counted by the tree's size."""

    device = "cpu"

    def free_segment(self, value: Any, start_pos: int = 0) -> None:
        """Nothing to keep."""


class SglangTree:
    """page: tokens of a page. pages: those of the whole cache."""

    def __init__(self, page: int, pages: int) -> None:
        from sglang.srt.mem_cache.radix_cache import RadixCache

        self.page, self.room = page, page * pages
        self.cache = RadixCache.create_simulated(
            mock_allocator=Allocator(), page_size=page, enable_kv_cache_events=True
        )
        self.cache.kv_events.take()  # that it begins empty
        self.running: dict[str, tuple[Any, int]] = {}

    def admit(self, name: str, prompt: tuple[int, ...]) -> int | None:
        """Prefill a request; tokens it found cached, None when there is no room for it."""
        from sglang.srt.mem_cache.base_prefix_cache import (
            EvictParams,
            InsertParams,
            MatchPrefixParams,
        )

        cache = self.cache
        found = cache.match_prefix(MatchPrefixParams(key=self._key(prompt[:-1])))
        cached, node = found.device_prefix_len, found.last_device_node
        cache.inc_lock_ref(node)
        needed = -(-len(prompt) // self.page) * self.page - cached
        tails = sum(tail for _, tail in self.running.values())
        lacking = cache.total_size() + tails + needed - self.room
        if lacking > 0:
            if cache.evictable_size() < lacking:
                cache.dec_lock_ref(node)
                return None
            cache.evict(EvictParams(num_tokens=lacking))
        cache.insert(InsertParams(key=self._key(prompt)))
        whole = cache.match_prefix(MatchPrefixParams(key=self._key(prompt))).last_device_node
        cache.inc_lock_ref(whole)
        cache.dec_lock_ref(node)
        self.running[name] = (whole, self.page if len(prompt) % self.page else 0)
        return int(cached)

    def release(self, name: str) -> None:
        """End a request."""
        node, _ = self.running.pop(name)
        self.cache.dec_lock_ref(node)

    def reset(self) -> bool:
        """Drop all; only when nothing runs."""
        if self.running:
            return False
        self.cache.reset()
        return True

    def step(self) -> bytes | None:
        """What the engine publishes at the end of a step."""
        from sglang.srt.disaggregation.kv_events import KVEventBatch

        events = self.cache.kv_events.take()
        return (
            msgspec.msgpack.encode(KVEventBatch(ts=time.time(), events=events)) if events else None
        )

    def _key(self, tokens: tuple[int, ...]) -> Any:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return RadixKey(array("q", tokens))
