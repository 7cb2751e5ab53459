"""Conversation records: what earlier turns really sent, so that a later turn can refer to it.

Every turn has a record of its own, found by a digest of all messages up to it: an edited or
branched history finds the turns before the change and no others, and branches stand side by side.
Long texts are kept once for a tenant, by content. Nothing here knows of replicas: the prompt of a
turn is the same wherever it goes (docs/decisions/0014).

Records are advisory. Missing, too large or unreachable: full texts are sent without references,
and new records begin. Every reference therefore resolves inside the prompt sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from cp_ray.core.types import BlockId, Context, RequestId
from cp_ray.errors import CpRayError
from cp_ray.router.history import digest
from cp_ray.router.ports import RecordStore
from cp_ray.store import wire

MAX_TURNS = 1000
"""Turns of a conversation that are looked up; later ones are sent as the client sends them."""
INLINE_BYTES = 256
"""Texts up to this stand in the turn's record; longer ones once for a tenant, by content."""
_READ_S = 0.25
_WRITE_S = 1.0
_log = logging.getLogger(__name__)


class Turn(msgspec.Struct, frozen=True):
    """One user message as it was sent.

    pieces: texts of its content, in order. context: what stands in the first of them, in order,
    references included. seen: blocks that a later turn may refer to; they stand in `pieces`.
    """

    request_id: RequestId
    pieces: tuple[str, ...]
    context: Context
    seen: tuple[BlockId, ...]

    @property
    def size(self) -> int:
        """Bytes of its pieces."""
        return sum(len(piece.encode()) for piece in self.pieces)


class _Text(msgspec.Struct, frozen=True, array_like=True):
    """Where a long piece is kept."""

    key: str


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    request_id: RequestId
    pieces: tuple[str | _Text, ...]
    context: Context
    seen: tuple[BlockId, ...]

    def texts(self) -> list[str]:
        return [piece.key for piece in self.pieces if isinstance(piece, _Text)]


class Conversations:
    """Reads and writes turns; a store that fails or hangs costs the reuse, never the answer.

    max_bytes: of all pieces of one conversation; past it the turn is not kept.
    """

    def __init__(self, store: RecordStore | None, ttl_s: int, max_bytes: int) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self.failures = 0

    async def load(
        self, tenant: str, conversation: str, links: Sequence[str]
    ) -> tuple[Turn, ...] | None:
        """Recorded turns that this history begins with; None when they cannot be read now.

        links: of `history.chain`, one for each user message. Reading renews the time to live.
        """
        if self._store is None or not links:
            return ()
        keys = [turn_key(tenant, conversation, link) for link in links[:MAX_TURNS]]
        try:
            async with asyncio.timeout(_READ_S):
                return await self._read(self._store, keys)
        except (CpRayError, TimeoutError) as error:
            self._failed("read", error)
        return None

    async def _read(self, store: RecordStore, keys: Sequence[str]) -> tuple[Turn, ...]:
        found: list[_Stored] = []
        for data in await store.get_records(keys, self._ttl_s):
            if data is None:
                break
            try:
                found.append(wire.decode(data, _Stored))
            except CpRayError as error:  # written by another version: it and what follows is lost
                self._failed("read", error)
                break
        wanted = list(dict.fromkeys(key for stored in found for key in stored.texts()))
        values = await store.get_records(wanted, self._ttl_s) if wanted else []
        texts = {k: v.decode() for k, v in zip(wanted, values, strict=True) if v is not None}
        turns = []
        for stored in found:
            if not all(key in texts for key in stored.texts()):
                break
            pieces = tuple(texts[p.key] if isinstance(p, _Text) else p for p in stored.pieces)
            turns.append(Turn(stored.request_id, pieces, stored.context, stored.seen))
        return tuple(turns)

    async def save(
        self,
        tenant: str,
        conversation: str,
        link: str,
        turn: Turn,
        *,
        plain: Sequence[tuple[str, str]] = (),
        earlier_bytes: int = 0,
    ) -> None:
        """Keep the turn, unless the conversation is too large with it.

        plain: (link, text) of user messages before it that have no record: they get one, so that
        the turn can be found. earlier_bytes: of the others.
        """
        size = earlier_bytes + turn.size + sum(len(text.encode()) for _, text in plain)
        if self._store is None or size > self._max_bytes:
            return
        before = [
            (before_link, Turn(turn.request_id, (text,) if text else (), (), ()))
            for before_link, text in plain
        ]
        records: dict[str, bytes] = {}
        turns: dict[str, bytes] = {}
        for each, one in (*before, (link, turn)):
            pieces: list[str | _Text] = []
            for piece in one.pieces:
                data = piece.encode()
                if len(data) <= INLINE_BYTES:
                    pieces.append(piece)
                else:
                    key = text_key(tenant, piece)
                    records[key] = data
                    pieces.append(_Text(key))
            stored = _Stored(one.request_id, tuple(pieces), one.context, one.seen)
            turns[turn_key(tenant, conversation, each)] = wire.encode(stored)
        try:
            async with asyncio.timeout(_WRITE_S):
                # Texts first: a turn that is found has its texts.
                await self._store.put_records({**records, **turns}, self._ttl_s)
        except (CpRayError, TimeoutError) as error:
            self._failed("write", error)

    def _failed(self, action: str, error: Exception) -> None:
        self.failures += 1
        _log.warning("conversation record: %s failed (%s): sending full text", action, error)


def turn_key(tenant: str, conversation: str, link: str) -> str:
    """Key of one turn; neither tenants nor conversations share one."""
    return f"turn:{digest(tenant, conversation, link)}"


def text_key(tenant: str, text: str) -> str:
    """Key of a text; conversations of one tenant share it."""
    return f"text:{digest(tenant, text)}"
