"""Cache events: the forms engines have sent over time, and a real ZMQ publisher that loses some."""

import asyncio
import importlib.util
import shutil
import tempfile
from collections.abc import Awaitable, Callable

import msgpack  # type: ignore[import-untyped]
import pytest

from cp_ray.errors import WireError
from cp_ray.workers.cache_events import CacheEvent, Cleared, Removed, Stored
from cp_ray.workers.kv_events import EventStream, decode_batch
from tests.shells.event_publisher import Publisher, packed

STORED = {
    "type": "BlockStored",
    "block_hashes": [7, 2**64 - 1],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}


def test_todays_maps_are_read_in_either_batch_form():
    events = [
        {**STORED, "extra_keys": [["salt"], None], "group_idx": 0, "session_id": None},
        {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0},
        {"type": "AllBlocksCleared"},
    ]
    expected = [
        Stored((7, 2**64 - 1), None, (1, 2, 3, 4), (("salt",), ()), 2),
        Removed((7,)),
        Cleared(),
    ]
    assert decode_batch(packed(*events)) == expected
    assert decode_batch(packed(*events, form=dict)) == expected


def test_older_arrays_and_hashes_of_bytes_are_read():
    events = [
        ["BlockStored", [b"h" * 32], b"p" * 32, [1, 2], 2, None, "GPU"],
        ["BlockRemoved", [b"h" * 32], "GPU"],
        ["BlockRemoved", [b"p" * 32]],
        ["AllBlocksCleared"],
    ]
    assert decode_batch(packed(*events)) == [
        Stored((b"h" * 32,), b"p" * 32, (1, 2), ((),), 2),
        Removed((b"h" * 32,)),
        Removed((b"p" * 32,)),
        Cleared(),
    ]


def test_an_adapter_is_part_of_the_key_also_where_extra_keys_are_not_published():
    [event] = decode_batch(packed({**STORED, "lora_name": "lora"}))
    assert isinstance(event, Stored)
    assert event.extra == (("lora",), ("lora",))


def test_sglang_names_the_salt_of_every_run_and_only_the_first_block_is_keyed_by_it():
    first = {**STORED, "cache_salt": "salt", "lora_name": "lora"}
    below = {**first, "parent_block_hash": 7}
    stored = [event for event in decode_batch(packed(first, below)) if isinstance(event, Stored)]
    assert [event.extra for event in stored] == [
        (("lora", "salt"), ("lora",)),
        (("lora",), ("lora",)),
    ]


def test_other_memory_and_windowed_layers_are_left_out():
    batch = packed(
        {**STORED, "medium": "CPU"},
        {**STORED, "kv_cache_spec_kind": "sliding_window"},
        {**STORED, "locality": "REMOTE"},
        {"type": "BlockRemoved", "block_hashes": [7], "medium": "STORAGE"},
        {"type": "SomethingNew", "x": 1},
    )
    assert decode_batch(batch) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb([1.0]),
        msgpack.packb([1.0, [5]]),
        msgpack.packb("batch"),
        packed({"type": "BlockStored"}),
        packed({**STORED, "token_ids": [1]}),
    ],
)
def test_anything_else_is_a_wire_error(payload):
    with pytest.raises(WireError):
        decode_batch(payload)


def removal(number: int) -> bytes:
    return packed({"type": "BlockRemoved", "block_hashes": [number], "medium": "GPU"})


async def follow(script: Callable[[Publisher], Awaitable[None]], kept: int = 100) -> list[object]:
    """Run `script(publisher)` under a stream; what it heard, "hole" for a hole."""
    folder = tempfile.mkdtemp(prefix="cp_", dir="/tmp")
    publisher = Publisher(folder, kept)
    heard: list[object] = []

    def on_batch(events: list[CacheEvent]) -> None:
        heard.extend(
            name for event in events if isinstance(event, Removed) for name in event.hashes
        )

    stream = EventStream(
        *publisher.endpoints,
        on_batch,
        lambda: heard.append("hole"),
    )
    task = asyncio.create_task(stream.run())
    try:
        await publisher.subscribed()
        await script(publisher)
        for _ in range(100):
            if heard and heard[-1] == len(publisher.log) - 1:
                break
            await asyncio.sleep(0.02)
    finally:
        task.cancel()
        stream.close()
        stream.close()
        publisher.close()
        shutil.rmtree(folder)
    return heard


needs_zmq = pytest.mark.skipif(importlib.util.find_spec("zmq") is None, reason="pyzmq is missing")


@needs_zmq
def test_lost_batches_are_replayed_in_order_and_none_comes_twice():
    async def script(publisher: Publisher) -> None:
        for number in range(30):
            await publisher.publish(removal(number), lose=number % 3 == 1 or number < 4)

    assert asyncio.run(follow(script)) == list(range(30))


@needs_zmq
def test_batches_beyond_the_replay_buffer_are_one_hole_and_the_stream_goes_on():
    async def script(publisher: Publisher) -> None:
        await publisher.publish(removal(0))
        for number in range(1, 9):
            await publisher.publish(removal(number), lose=number < 7)

    assert asyncio.run(follow(script, kept=3)) == [0, "hole", 7, 8]


@needs_zmq
def test_an_unreadable_batch_is_a_hole():
    async def script(publisher: Publisher) -> None:
        await publisher.publish(removal(0))
        await publisher.publish(b"\xc1")
        await publisher.publish(removal(2))

    assert asyncio.run(follow(script)) == [0, "hole", 2]


@needs_zmq
def test_a_batch_that_comes_again_or_late_changes_nothing():
    async def script(publisher: Publisher) -> None:
        for number in range(4):
            await publisher.publish(removal(number), lose=number == 1)
        for number in (3, 1, 0):
            await publisher.send(number)
        await publisher.publish(removal(4))

    assert asyncio.run(follow(script)) == [0, 1, 2, 3, 4]
