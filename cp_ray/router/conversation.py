"""The conversation record: what earlier turns really sent, so that a later turn can refer to it.

It is advisory. Missing, mismatched, too large or unreachable: the full text is sent, without
references, and a fresh record begins. Every reference therefore resolves inside the prompt sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence

import msgspec

from cp_ray.core.types import BlockId, RequestId
from cp_ray.errors import CpRayError
from cp_ray.router.ports import RecordStore
from cp_ray.store import wire

MAX_BYTES = 1 << 20
_READ_S = 0.25
_WRITE_S = 1.0
_log = logging.getLogger(__name__)


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One user message. user: digest of the client's text. pieces: its content as first sent.

    blocks: ids of the context blocks that stand in full in `pieces`.
    """

    user: str
    pieces: tuple[str, ...]
    blocks: tuple[BlockId, ...]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """prelude: digest of model, system prompts and tools. request_id: of the last turn sent."""

    prelude: str
    turns: tuple[Turn, ...]
    request_id: RequestId


def digest(*texts: str) -> str:
    """Digest of texts and of where each ends."""
    state = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode()
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()


def plain_turn(text: str) -> Turn:
    """A user message of the history as the client sends it."""
    return Turn(digest(text), (text,), ())


def match(record: Record | None, prelude: str, users: Sequence[str]) -> tuple[Turn, ...] | None:
    """Turns of the record that are this history, or None. users: earlier user texts, in order.

    A record may hold more turns than the history (the last one is asked again): those are left out.
    """
    if record is None or record.prelude != prelude or len(record.turns) < len(users):
        return None
    turns = record.turns[: len(users)]
    same = all(turn.user == digest(text) for turn, text in zip(turns, users, strict=True))
    return turns if same else None


class Conversations:
    """Reads and writes records; a store that fails or hangs costs the reuse, never the answer."""

    def __init__(self, store: RecordStore | None, ttl_s: int) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self.failures = 0

    @staticmethod
    def key(tenant: str, conversation: str) -> str:
        """Key of a conversation; tenants never share one."""
        return f"conversation:{digest(tenant, conversation)}"

    async def load(self, key: str) -> Record | None:
        """The record, or None for any reason at all."""
        if self._store is None:
            return None
        try:
            async with asyncio.timeout(_READ_S):
                data = await self._store.get_record(key)
            return None if data is None else wire.decode(data, Record)
        except (CpRayError, TimeoutError) as error:
            self._failed("read", error)
        return None

    async def save(self, key: str, record: Record) -> None:
        """Keep the record unless it is larger than 1 MiB; then the conversation starts afresh."""
        data = wire.encode(record)
        if self._store is None or len(data) > MAX_BYTES:
            return
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._store.put_record(key, data, self._ttl_s)
        except (CpRayError, TimeoutError) as error:
            self._failed("write", error)

    def _failed(self, action: str, error: Exception) -> None:
        self.failures += 1
        _log.warning("conversation record: %s failed (%s): sending full text", action, error)
