"""SGLang's own radix cache and event classes, without an engine. Only in its own environment.

What the test engine cannot be made to send (adapters, host memory) is sent by these.
"""

import importlib.util
import random
from array import array
from typing import Any

import msgspec
import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed: make test-sglang", allow_module_level=True)

from sglang.srt.disaggregation import kv_events as sglang_events
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.events import KvEventLoraNames
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from cp_ray.core.types import Eviction, RequestId
from cp_ray.workers.kv_events import decode_batch
from cp_ray.workers.residency import Residency

pytestmark = pytest.mark.sglang
PAGE = 4
Q = RequestId("q")


class Allocator:
    """The cache's memory: it counts tokens that come back."""

    device = "cpu"

    def __init__(self) -> None:
        self.freed = 0

    def free_segment(self, value: Any, start_pos: int = 0) -> None:
        self.freed += len(value)


def tree(lora_names: Any = None) -> RadixCache:
    cache = RadixCache.create_simulated(
        mock_allocator=Allocator(),
        page_size=PAGE,
        enable_kv_cache_events=True,
        kv_event_lora_names=lora_names,
    )
    cache.kv_events.take()  # that it begins empty
    return cache


def key(tokens: Any, **told: str) -> RadixKey:
    return RadixKey(array("q", tokens), **told)


def insert(cache: RadixCache, tokens: Any, **told: str) -> None:
    cache.insert(InsertParams(key=key(tokens, **told)))


def matched(cache: RadixCache, tokens: Any, **told: str) -> int:
    return cache.match_prefix(MatchPrefixParams(key=key(tokens, **told))).device_prefix_len


def published(cache: RadixCache) -> bytes:
    batch = sglang_events.KVEventBatch(ts=1.0, events=cache.kv_events.take())
    return msgspec.msgpack.encode(batch)


def following(*batches: bytes, **settings: Any) -> Residency:
    residency = Residency(PAGE, copies=False, **settings)
    for payload in batches:
        residency.apply(decode_batch(payload))
    return residency


def held(residency: Residency, tokens: Any, salt: str | None = None) -> int:
    return residency.held_tokens(residency.path([*tokens, 0], salt))


def test_a_run_of_pages_and_its_split_are_followed_without_a_copy() -> None:
    cache = tree()
    insert(cache, range(12))
    residency = following(published(cache))
    assert held(residency, range(12)) == 12
    insert(cache, [*range(8), 90, 91, 92, 93])
    insert(cache, range(12))
    residency.apply(decode_batch(published(cache)))
    assert residency.blocks == 4
    assert residency.doubts == 0
    residency.check()


def test_an_evicted_node_loses_its_pages_and_leaves_those_above() -> None:
    cache = tree()
    insert(cache, range(12))
    insert(cache, [*range(4), 90, 91, 92, 93])
    residency = following(published(cache))
    residency.register(Q, residency.path([*range(12), 0]))
    cache.evict(EvictParams(num_tokens=1))
    assert residency.apply(decode_batch(published(cache))) == [Eviction(Q, 4)]
    assert held(residency, range(12)) == matched(cache, range(12)) == 4


def test_a_flush_is_told_once() -> None:
    cache = tree()
    insert(cache, range(8))
    residency = following(published(cache))
    cache.reset()
    events = decode_batch(published(cache))
    assert len(events) == 1
    residency.apply(events)
    assert residency.blocks == 0


def test_salts_keep_the_same_tokens_apart() -> None:
    cache = tree()
    for salt in ("one", "two"):
        insert(cache, range(8), cache_salt=salt)
        insert(cache, range(16), cache_salt=salt)
    residency = following(published(cache))
    assert residency.blocks == 8
    assert (held(residency, range(16), "one"), held(residency, range(16))) == (16, 0)
    insert(cache, range(16))
    residency.apply(decode_batch(published(cache)))
    assert held(residency, range(16)) == 16
    assert residency.doubts == 0
    residency.check()


def test_adapters_by_name_keep_apart_from_the_base_model() -> None:
    names = KvEventLoraNames()
    for name in ("one", "two"):

        class Asked:
            lora_id = extra_key = name

        names.register(Asked, name)
    cache = tree(names)
    for told in ({}, {"extra_key": "one"}, {"extra_key": "two"}):
        insert(cache, range(8), **told)
    residency = following(published(cache))
    assert residency.blocks == 6
    assert held(residency, range(8)) == 8
    assert residency.doubts == 0


def test_pages_in_host_memory_or_on_disk_are_neither_hit_nor_ghost() -> None:
    cache = tree()
    insert(cache, range(8))
    node = next(iter(cache.root_node.children.values()))
    residency = following(published(cache))
    residency.register(Q, residency.path([*range(8), 0]))
    for medium in (
        sglang_events.StorageMedium.CPU,
        sglang_events.StorageMedium.DISK,
        sglang_events.StorageMedium.EXTERNAL,
    ):
        cache.kv_events.record_store(node, medium=medium)
        assert decode_batch(published(cache)) == []
    cache.evict(EvictParams(num_tokens=8))
    assert residency.apply(decode_batch(published(cache))) == [Eviction(Q, 0)]
    cache.kv_events.record_remove(node, medium=sglang_events.StorageMedium.CPU)
    assert decode_batch(published(cache)) == []
    assert residency.doubts == 0


def test_the_dynamo_form_of_the_names_is_only_another_name() -> None:
    cache = RadixCache.create_simulated(
        mock_allocator=Allocator(),
        page_size=PAGE,
        enable_kv_cache_events=True,
        dynamo_kv_event_format=True,
    )
    insert(cache, range(8), cache_salt="one")
    residency = following(published(cache))
    assert held(residency, range(8), "one") == 8


def test_thousands_of_inserts_and_evictions_end_as_the_tree_says() -> None:
    source = random.Random(3)
    cache, room = tree(), 60 * PAGE
    residency = following(capacity=60)
    documents = [tuple(source.randrange(1000) for _ in range(n)) for n in (3, 4, 8, 9, 12, 17) * 3]
    evictions = checked = 0
    for number in range(3000):
        prompt = sum(source.sample(documents, source.randint(1, 4)), ())
        salt = source.choice([None, None, "salt"])
        told = {"cache_salt": salt} if salt else {}
        found = matched(cache, prompt[:-1], **told)
        assert found == residency.held_tokens(residency.path(prompt, salt)), number
        checked += found > 0
        lacking = cache.total_size() + len(prompt) - found - room
        if lacking > 0:
            cache.evict(EvictParams(num_tokens=lacking))
        insert(cache, prompt, **told)
        path = residency.path(prompt, salt)
        residency.register(RequestId(f"r{number}"), path)
        evictions += len(residency.apply(decode_batch(published(cache))))
    assert checked > 500
    assert evictions > 1000
    assert residency.doubts == 0
    residency.check()


def test_a_removal_that_was_not_heard_shows_when_the_page_comes_again() -> None:
    cache = tree()
    insert(cache, range(8))
    residency = following(published(cache))
    cache.evict(EvictParams(num_tokens=8))
    published(cache)  # lost
    insert(cache, range(8))
    residency.apply(decode_batch(published(cache)))
    assert residency.doubts == 2
