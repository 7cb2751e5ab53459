"""vLLM's KV cache events over ZMQ: decode a batch, follow the stream, mend its gaps.

Frames: topic, sequence number (8 bytes, big-endian), msgpack `[time, events, rank]`. An event is a
map with "type" or, before mid-2026, an array `[type, fields...]`; both are read. SGLang publishes
the same format.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec

from cp_ray.errors import WireError
from cp_ray.workers.cache_events import CacheEvent, Cleared, EngineHash, Removed, Stored

log = logging.getLogger(__name__)

_ARRAY_FIELDS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
# A prefix is as long as these layers have it; windowed and recurrent layers drop early by design.
_PREFIX_KINDS = (None, "full_attention", "mla_attention", "sink_full_attention")
_END = -1
_REPLAY_TIMEOUT_S = 2.0


class Batch(NamedTuple):
    """What one engine step did to the cache. made_at: by the engine's clock, seconds since 1970."""

    made_at: float
    events: list[CacheEvent]


def read_batch(payload: bytes) -> Batch:
    """One batch; of its events those that concern the engine's own memory, not other tiers.

    Raises WireError when the payload is not such a batch.
    """
    try:
        batch = msgspec.msgpack.decode(payload)
        as_map = isinstance(batch, Mapping)
        made_at = float(batch["ts"] if as_map else batch[0])
        events = [_event(_fields(event)) for event in (batch["events"] if as_map else batch[1])]
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise WireError(f"KV event batch cannot be read: {error!r}") from error
    return Batch(made_at, [event for event in events if event is not None])


def decode_batch(payload: bytes) -> list[CacheEvent]:
    """The events of `read_batch`."""
    return read_batch(payload).events


def full_attention(kinds: Sequence[str]) -> frozenset[int]:
    """Of an engine's groups of layers, by kind, those that a prefix is as long as."""
    return frozenset(index for index, kind in enumerate(kinds) if kind in _PREFIX_KINDS)


def _fields(event: Any) -> Mapping[str, Any]:
    if isinstance(event, Mapping):
        return event
    return {"type": event[0], **dict(zip(_ARRAY_FIELDS[event[0]], event[1:], strict=False))}


def _event(fields: Mapping[str, Any]) -> CacheEvent | None:
    kind = fields["type"]
    if kind == "AllBlocksCleared":
        return Cleared()
    if kind not in _ARRAY_FIELDS:
        return None  # a newer engine's event: it says nothing of blocks we know
    if (fields.get("medium") or "GPU") != "GPU" or fields.get("locality") == "REMOTE":
        return None
    hashes: tuple[EngineHash, ...] = tuple(fields["block_hashes"])
    group = fields.get("group_idx") or 0
    if kind == "BlockRemoved":
        return Removed(hashes, group)
    if fields.get("kv_cache_spec_kind") not in _PREFIX_KINDS:
        return None
    tokens, size = tuple(fields["token_ids"]), fields["block_size"]
    if len(tokens) != size * len(hashes):
        raise WireError(f"{len(hashes)} blocks of {size} with {len(tokens)} tokens")
    parent = fields["parent_block_hash"]
    return Stored(hashes, parent, tokens, _extra(fields, len(hashes)), size, group)


def _extra(fields: Mapping[str, Any], blocks: int) -> tuple[tuple[str, ...], ...]:
    keys: Sequence[Any] | None = fields.get("extra_keys")
    if keys is None:
        lora = fields.get("lora_name") or fields.get("lora_id")
        each: tuple[str, ...] = (str(lora),) if lora is not None else ()
        salt = fields.get("cache_salt")
        if salt and fields["parent_block_hash"] is None:
            # SGLang names the salt of every run; below the first block it is inherited.
            return ((*each, salt), *(each,) * (blocks - 1))
        return (each,) * blocks
    return tuple(tuple(map(str, key or ())) for key in keys)


class EventStream:
    """Follows one engine process. Times in seconds.

    on_batch: hears every batch, in order and once; `Cleared` alone when the engine began anew.
    on_hole: batches are lost for good. made_at: when the engine made the newest batch heard.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str,
        on_batch: Callable[[list[CacheEvent]], None],
        on_hole: Callable[[], None],
    ) -> None:
        from zmq.asyncio import Context
        from zmq.constants import RCVHWM, SUB

        self._replay_endpoint = replay_endpoint
        self._on_batch = on_batch
        self._on_hole = on_hole
        self.made_at = -inf
        self._next = 0
        self._newest = (-1, b"")
        self._context = Context()
        self._socket = self._context.socket(SUB)
        self._socket.set(RCVHWM, 0)  # we keep up or we keep all: dropping would make holes
        self._socket.subscribe(b"")
        self._socket.connect(endpoint)

    async def catch_up(self) -> None:
        """Take what the engine published before we listened. Before `run`, or not at all."""
        for sequence, payload in await self._replay(self._next):
            if sequence > self._next:
                break  # the rest is for `run` to find missing
            self._take(sequence, payload)

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            frames = await self._socket.recv_multipart()
            sequence = int.from_bytes(frames[-2], "big")
            if sequence < self._next and self._is_restart(frames[-1]):
                self._restart()
            if sequence > self._next:
                await self._mend(sequence)
            self._take(sequence, frames[-1])

    def close(self) -> None:
        """Drop the connection; a second call does nothing."""
        self._context.destroy(linger=0)

    def _take(self, sequence: int, payload: bytes) -> None:
        if sequence < self._next:
            return  # mended already
        self._next = sequence + 1
        self._newest = (sequence, payload)
        try:
            batch = read_batch(payload)
        except WireError as error:
            log.warning("cache events cannot be read, the cache is forgotten: %s", error)
            self._on_hole()
            return
        self.made_at = batch.made_at
        self._on_batch(batch.events)

    def _is_restart(self, payload: bytes) -> bool:
        """A low number is a batch that came again or late, unless it was made after the newest."""
        try:
            return read_batch(payload).made_at > self.made_at
        except WireError:
            return True

    def _restart(self) -> None:
        log.warning("the engine numbers its cache events anew: it was restarted")
        self._next = 0
        self._newest = (-1, b"")
        self._on_batch([Cleared()])

    async def _mend(self, until: int) -> None:
        """Ask the engine again for the batches before `until`, and for the last one we had.

        An engine that does not know it as we do is another one.
        """
        known, newest = self._newest
        batches = await self._replay(max(known, 0))
        if any(sequence == known and payload != newest for sequence, payload in batches):
            self._restart()
            batches = await self._replay(0)
        for sequence, payload in batches:
            if self._next <= sequence < until:
                if sequence > self._next:
                    break
                self._take(sequence, payload)
        if self._next < until:
            log.warning("cache events %d to %d are lost", self._next, until - 1)
            self._on_hole()
            self._next = until

    async def _replay(self, start: int) -> list[tuple[int, bytes]]:
        from zmq.constants import DEALER, LINGER, RCVHWM

        batches: list[tuple[int, bytes]] = []
        with self._context.socket(DEALER) as socket:
            socket.set(LINGER, 0)
            socket.set(RCVHWM, 0)  # a replay may be longer than the 1,000 messages of the default
            socket.connect(self._replay_endpoint)
            try:
                async with asyncio.timeout(_REPLAY_TIMEOUT_S):
                    await socket.send_multipart([b"", start.to_bytes(8, "big")])
                    while True:
                        frames = await socket.recv_multipart()
                        sequence = int.from_bytes(frames[-2], "big", signed=True)
                        if sequence == _END:
                            break
                        batches.append((sequence, frames[-1]))
            except TimeoutError:
                log.warning("the engine does not replay its cache events")
        return batches
