"""OpenAI's answers: chat.completion, chat.completion.chunk, text_completion, and errors."""

from __future__ import annotations

from typing import Any

import msgspec

from cp_ray.errors import CpRayError, to_http
from cp_ray.workers.engine import Chunk

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


class Format(msgspec.Struct, frozen=True):
    """How one answer looks.

    chat: which of the two routes asked. usage_chunk: as OpenAI's `stream_options.include_usage`:
    `usage` is null in every chunk, and one more chunk without choices carries it.
    """

    chat: bool
    id: str
    created: int
    model: str
    fingerprint: str
    usage_chunk: bool = False

    def whole(self, text: str, last: Chunk) -> Json:
        """An answer in one piece."""
        choice: Json = {"index": 0, "finish_reason": last.finish_reason, "logprobs": None}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._frame(kind), "choices": [choice], "usage": usage(last)}

    def opening(self) -> list[Json]:
        """What a stream begins with: chat names the role first."""
        return [self._delta({"role": "assistant", "content": ""}, None)] if self.chat else []

    def text(self, text: str) -> Json:
        """More of the answer."""
        return self._delta({"content": text} if self.chat else text, None)

    def closing(self, last: Chunk) -> list[Json]:
        """The finish reason, and the usage when it was asked for."""
        end = [self._delta({} if self.chat else "", last.finish_reason)]
        if self.usage_chunk:
            end.append({**self._frame(self._chunk_kind), "choices": [], "usage": usage(last)})
        return end

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _delta(self, delta: Json | str, finish_reason: str | None) -> Json:
        choice: Json = {
            "index": 0,
            "delta" if self.chat else "text": delta,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        extra: Json = {"usage": None} if self.usage_chunk else {}
        return {**self._frame(self._chunk_kind), "choices": [choice], **extra}

    def _frame(self, kind: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def usage(last: Chunk) -> Json:
    """Token counts, by the engine's own account."""
    return {
        "prompt_tokens": last.prompt_tokens,
        "completion_tokens": last.completion_tokens,
        "total_tokens": last.prompt_tokens + last.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": last.cached_tokens},
    }


def event(value: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def error_event(error: CpRayError) -> bytes:
    """An error in the middle of a stream; no [DONE] follows it."""
    return event(dict(to_http(error)[2]))
