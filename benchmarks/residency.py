"""Residency: events a second through decode + residency + report, and bytes a block.

    python -m benchmarks.residency [--blocks 100000] [--events 400000]

One event = one block stored or removed. The batches are vLLM's wire format (map form, msgpack):
requests of 64 blocks of 16 tokens that share a prefix of 32 with others, each stored run in one
event and each removal in one of its own, oldest request first and its deepest block first, as
vLLM evicts; every request is registered, and what it loses goes through the reporter's encoding.
"""

import argparse
import gc
import random
import time
import tracemalloc
from collections import deque

import msgpack  # type: ignore[import-untyped]

from cp_ray.core.types import Eviction, EvictionReport, ReplicaId, RequestId
from cp_ray.store import wire
from cp_ray.workers.eviction_order import EvictionOrder
from cp_ray.workers.kv_events import decode_batch
from cp_ray.workers.residency import Residency

PAGE, SHARED, OWN = 16, 32, 32
PREFIXES = 200


class Engine:
    """Makes the batches of an engine that is always full, ahead of the measurement."""

    def __init__(self, capacity: int) -> None:
        self._random = random.Random(1)
        self._capacity = capacity
        self._held: deque[int] = deque()
        self._prefixes: list[list[int]] = [self._tokens(SHARED) for _ in range(PREFIXES)]
        self._warm: set[int] = set()
        self._name = 1 << 63

    def request(self) -> tuple[list[int], bytes, int]:
        """Prompt, payload of the step that prefilled it, events in it."""
        which = self._random.randrange(PREFIXES)
        own = self._tokens(OWN)
        names = [self._new() for _ in range(OWN)]
        events: list[dict[str, object]] = []
        blocks = OWN
        if which not in self._warm:
            self._warm.add(which)
            hashes = [which * 1000 + place for place in range(SHARED)]
            events.append(self._stored(hashes, None, self._prefixes[which]))
            blocks += SHARED
        while len(self._held) + OWN + len(self._warm) * SHARED > self._capacity:
            gone = self._held.popleft()
            blocks += 1
            events.append(
                {"type": "BlockRemoved", "block_hashes": [gone], "medium": "GPU", "group_idx": 0}
            )
        events.append(self._stored(names, which * 1000 + SHARED - 1, own))
        self._held.extend(reversed(names))
        payload = msgpack.packb([time.time(), events, 0])
        return self._prefixes[which] + own, payload, blocks

    def _stored(self, names: list[int], parent: int | None, tokens: list[int]) -> dict[str, object]:
        return {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": parent,
            "token_ids": tokens,
            "block_size": PAGE,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * len(names),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _tokens(self, blocks: int) -> list[int]:
        return [self._random.randrange(128_000) for _ in range(blocks * PAGE)]

    def _new(self) -> int:
        self._name += 1_000_003
        return self._name


def speed(blocks: int, events: int) -> dict[str, float]:
    engine = Engine(blocks)
    residency = Residency(PAGE, blocks, order=EvictionOrder())
    replica = ReplicaId("bench")
    done = requests = reported = register_events = 0
    spent = register_s = 0.0
    while done < events:
        step = [engine.request() for _ in range(200)]
        heard: list[Eviction] = []
        began = time.process_time()
        for _, payload, count in step:
            heard += residency.apply(decode_batch(payload))
            done += count
        wire.encode(EvictionReport(replica, 0, 0, tuple(heard)))
        spent += time.process_time() - began
        reported += len(heard)
        began = time.process_time()
        for prompt, _, _ in step:
            name, path = RequestId(f"r{requests}"), residency.path(prompt)
            residency.sent(name, path)
            residency.register(name, path)
            residency.ended(name, (), whole=True, at=requests)
            requests += 1
        register_s += time.process_time() - began
        register_events += len(step)
    residency.check()
    assert residency.doubts == 0
    return {
        "events": done,
        "events_per_s": done / spent,
        "register_us": register_s / register_events * 1e6,
        "evictions_reported": reported,
        "blocks": residency.blocks,
    }


def memory(blocks: int) -> dict[str, float]:
    engine = Engine(2 * blocks)
    payloads = [engine.request()[1] for _ in range(blocks // OWN + 1)]
    gc.collect()
    tracemalloc.start()
    residency = Residency(PAGE, order=EvictionOrder())
    for payload in payloads:
        residency.apply(decode_batch(payload))
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"bytes_per_block": held / residency.blocks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=400_000)
    args = parser.parse_args()
    for name, value in (speed(args.blocks, args.events) | memory(args.blocks)).items():
        print(f"{name:>20} {value:14.1f}")


if __name__ == "__main__":
    main()
