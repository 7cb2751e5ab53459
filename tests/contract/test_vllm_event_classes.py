"""What this machine's engine cannot be made to send, on vLLM's own event classes and encoder."""

from typing import Any

import msgspec
import pytest

pytest.importorskip("vllm")

from vllm.distributed import kv_events as vllm_events

from cp_ray.core.types import Eviction, RequestId
from cp_ray.workers.kv_events import decode_batch
from cp_ray.workers.residency import Residency

pytestmark = pytest.mark.vllm
PAGE = 4
Q = RequestId("q")


def batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode(vllm_events.KVEventBatch(ts=1.0, events=list(events)))


def stored(tokens: range, names: list[Any], **fields: Any) -> Any:
    defaults = {"parent_block_hash": None, "block_size": PAGE, "lora_id": None, "medium": "GPU"}
    return vllm_events.BlockStored(
        block_hashes=names, token_ids=list(tokens), **(defaults | {"lora_name": None} | fields)
    )


def removed(*names: Any, **fields: Any) -> Any:
    return vllm_events.BlockRemoved(block_hashes=list(names), **({"medium": "GPU"} | fields))


def following(*events: Any) -> Residency:
    residency = Residency(PAGE)
    residency.register(Q, residency.path(range(9)))
    residency.apply(decode_batch(batch(*events)))
    return residency


def held(residency: Residency, prompt: range = range(9)) -> int:
    return residency.held_tokens(residency.path(prompt))


@pytest.mark.parametrize("names", [[2**64 - 1, 7], [b"a" * 32, b"b" * 32]], ids=["int", "bytes"])
def test_both_forms_of_hashes(names: list[Any]) -> None:
    residency = following(stored(range(8), names, group_idx=0))
    assert held(residency) == 8
    assert residency.apply(decode_batch(batch(removed(names[1])))) == [Eviction(Q, 4)]
    residency.check()


@pytest.mark.parametrize(
    "event",
    [
        stored(range(8), [1, 2], lora_name="one", extra_keys=[("one",), None], group_idx=0),
        stored(range(8), [b"a" * 32, b"b" * 32], parent_block_hash=b"c" * 32),
        stored(range(8), [1, 2], group_idx=2, kv_cache_spec_kind="sliding_window"),
        removed(1, b"a" * 32, group_idx=1),
        vllm_events.AllBlocksCleared(),
    ],
    ids=["adapter", "bytes", "window", "removed", "cleared"],
)
def test_an_event_as_an_array_of_its_fields_says_the_same_as_the_map(event: Any) -> None:
    """Arrays are what vLLM sent before mid-2026, in the order of the fields of today's classes."""
    array = [type(event).__name__, *msgspec.structs.astuple(event)]
    as_array = msgspec.msgpack.encode([1.0, [array], 0])
    assert decode_batch(as_array) == decode_batch(batch(event))


def test_sleep_clears_as_a_reset_does_and_waking_up_begins_with_nothing() -> None:
    residency = following(stored(range(8), [1, 2]), vllm_events.AllBlocksCleared())
    assert held(residency) == 0
    assert residency.held() == {}
    residency.apply(decode_batch(batch(stored(range(8), [1, 2]))))
    assert held(residency) == 8


def test_adapters_by_name_and_by_extra_keys_keep_apart_from_the_base_model() -> None:
    base = stored(range(8), [1, 2])
    one = stored(range(8), [3, 4], lora_id=1, lora_name="one", extra_keys=[("one",), ("one",)])
    two = stored(range(8), [5, 6], lora_id=2, lora_name="two")
    residency = following(base, one, two)
    assert residency.blocks == 6
    assert held(residency) == 8
    assert residency.apply(decode_batch(batch(removed(3, 4, 5, 6)))) == []
    assert held(residency) == 8
    residency.check()


def test_a_salt_stands_in_the_extra_keys_of_the_first_block() -> None:
    residency = following(stored(range(8), [1, 2], extra_keys=[("salt",), None]))
    assert held(residency) == 0
    assert residency.held_tokens(residency.path(range(9), "salt")) == 8


def test_hybrid_models_are_followed_by_their_full_attention_blocks_of_the_engines_size() -> None:
    residency = following(
        stored(range(8), [1, 2], group_idx=0, kv_cache_spec_kind="full_attention"),
        stored(range(8), [1, 2], group_idx=1, kv_cache_spec_kind="sliding_window"),
        stored(range(2), [8], group_idx=2, kv_cache_spec_kind="mamba", block_size=2),
        stored(range(2), [9], group_idx=3, kv_cache_spec_kind="full_attention", block_size=2),
    )
    assert (held(residency), residency.other_sizes) == (8, 1)
    gone = batch(removed(1, 2, group_idx=1), removed(8, group_idx=2), removed(9, group_idx=3))
    assert residency.apply(decode_batch(gone)) == []
    assert (held(residency), residency.doubts) == (8, 0), "other layers drop early by design"
    residency.check()


def test_offloaded_copies_are_neither_hit_nor_ghost() -> None:
    residency = following(stored(range(8), [1, 2]), stored(range(8), [1, 2], medium="CPU"))
    assert residency.apply(decode_batch(batch(removed(2)))) == [Eviction(Q, 4)]
    assert held(residency) == 4
    residency.apply(decode_batch(batch(removed(1, 2, medium="CPU"))))
    assert (held(residency), residency.doubts) == (4, 0)


def test_blocks_of_another_host_are_not_ours() -> None:
    assert decode_batch(batch(stored(range(8), [1, 2], locality="REMOTE"))) == []
