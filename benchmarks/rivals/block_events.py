"""What the simulator's caches hold, as the KV events of vLLM's engines.

The simulator says which requests' prefixes are cached and how far, not which blocks; a block is in
a cache as long as a request's prefix there goes through it.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from cp_ray.core.types import Eviction

BLOCK = 16
Blocks = list[int]
"""Chained hashes of a prompt's whole blocks: each names all tokens up to its end."""


def block_hashes(tokens: np.ndarray) -> Blocks:
    """Of every whole block."""
    before = b""
    hashes = []
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = tokens[start : start + BLOCK].tobytes()
        before = hashlib.blake2b(before + block, digest_size=8).digest()
        hashes.append(int.from_bytes(before, "little") >> 1)
    return hashes


class Holdings:
    """The blocks of one cache. Answers with those that came and those that went."""

    def __init__(self) -> None:
        self._kept: dict[str, Blocks] = {}
        self._users: dict[int, int] = {}
        self._early: dict[str, int] = {}

    def stored(self, request: str, blocks: Blocks) -> tuple[int, int]:
        """A request's prefix is cached: so many leading blocks were before, so many are now."""
        blocks = blocks[: self._early.pop(request, len(blocks))]
        known = 0
        while known < len(blocks) and blocks[known] in self._users:
            known += 1
        for block in blocks:
            self._users[block] = self._users.get(block, 0) + 1
        if blocks:
            self._kept[request] = blocks
        return known, len(blocks)

    def shrunk(self, request: str, blocks: int) -> Blocks:
        """So many of the request's are left. Those that are gone from the cache, deepest first."""
        if request not in self._kept:
            # The simulator tells of a step's evictions before its first tokens.
            self._early[request] = blocks
            return []
        kept = self._kept[request]
        gone = []
        for block in reversed(kept[blocks:]):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                gone.append(block)
        if blocks:
            self._kept[request] = kept[:blocks]
        else:
            del self._kept[request]
        return gone


class Publisher:
    """One engine's event socket, on a port of its own of this machine. context: of ZMQ.

    A probe is a block of its own, stored last: who asks for it and finds it has heard all before.
    """

    def __init__(self, context: Any, replica: int) -> None:
        from zmq.constants import LINGER, SNDHWM, XPUB

        self._socket = context.socket(XPUB)
        self._socket.setsockopt(SNDHWM, 0)
        self._socket.setsockopt(LINGER, 0)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._holdings = Holdings()
        self._sequence = 0
        self._replica = replica
        self._probes = 0
        self._events: list[dict[str, object]] = []

    def wait_for_subscriber(self, timeout_s: float) -> None:
        """Raises TimeoutError where nobody comes."""
        if not self._socket.poll(timeout_s * 1000):
            raise TimeoutError(f"nobody listens to the events of replica {self._replica}")
        self._socket.recv()

    def stored(self, request: str, tokens: np.ndarray) -> None:
        """The request's prompt is cached."""
        blocks = block_hashes(tokens)
        known, held = self._holdings.stored(request, blocks)
        if known < held:
            new = tokens[known * BLOCK : held * BLOCK].tolist()
            parent = blocks[known - 1] if known else None
            self._store(blocks[known:held], parent, new)

    def evicted(self, evictions: Sequence[Eviction]) -> None:
        """Requests lost pages."""
        for eviction in evictions:
            left = eviction.tokens_left // BLOCK
            gone = self._holdings.shrunk(eviction.request_id, left)
            if gone:
                self._remove(gone)

    def send(self) -> list[int] | None:
        """Send what happened since the last call. Tokens of the probe that goes behind it."""
        if not self._events:
            return None
        if self._probes:
            self._remove([self._probe_hash()])
        self._probes += 1
        probe = [VOID, self._replica, *divmod(self._probes, 1 << 15)] * (BLOCK // 4)
        self._store([self._probe_hash()], None, probe)
        payload = msgspec.msgpack.encode([time.time(), self._events, 0])
        self._socket.send_multipart([b"", struct.pack(">q", self._sequence), payload])
        self._sequence += 1
        self._events = []
        return probe

    def _store(self, blocks: Blocks, parent: int | None, tokens: list[int]) -> None:
        self._events.append(
            {
                "type": "BlockStored",
                "block_hashes": blocks,
                "parent_block_hash": parent,
                "token_ids": tokens,
                "block_size": BLOCK,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
        )

    def _remove(self, blocks: Blocks) -> None:
        self._events.append({"type": "BlockRemoved", "block_hashes": blocks, "medium": "GPU"})

    def close(self) -> None:
        self._socket.close()

    def _probe_hash(self) -> int:
        return (self._replica << 40 | self._probes) << 1 | 1 << 63


VOID = 1 << 20
"""A token that no prompt has."""
