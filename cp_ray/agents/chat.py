"""One chat completion, streamed and measured, by the official OpenAI client."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec
import openai
from openai.types import CompletionUsage
from pydantic import BaseModel

from cp_ray.errors import CpRayError


class Answer(msgspec.Struct, frozen=True):
    """A whole answer and what it cost. Times in seconds from sending.

    cached_tokens: prompt tokens that the engine took from its cache, by its own count.
    replica: who answered, where the client asked for it (header x-cp-ray-explain); else None.
    """

    text: str
    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    replica: str | None = None

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens that the engine had to compute."""
        return self.prompt_tokens - self.cached_tokens


class ChatFailed(CpRayError):
    """No whole answer came. status: HTTP status, or 0 for a connection that broke.

    started: whether a first token had come, so that the caller knows it was cut, not refused.
    """

    def __init__(self, message: str, *, status: int, started: bool) -> None:
        super().__init__(message)
        self.status = status
        self.started = started

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later: nothing is wrong with it as such."""
        return self.status in (0, 408, 429) or self.status >= 500

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the fields when the error crosses a process."""
        return _rebuilt, (self.message, self.status, self.started)


async def chat(
    client: openai.AsyncOpenAI,
    *,
    model: str,
    messages: Sequence[Mapping[str, str]],
    max_tokens: int,
    documents: Sequence[Mapping[str, Any]] = (),
    conversation: str | None = None,
    agent: str | None = None,
    heard: Callable[[str], None] | None = None,
    stream: bool = True,
) -> Answer:
    """Get one answer at temperature 0; raises ChatFailed when it does not come whole.

    documents: best first. heard: gets each part of the text as it comes, if it is streamed.
    conversation, agent: as in the API, left out when None. stream: False waits for the whole
    answer, whose first token then counts as late as its last.
    """
    extra: dict[str, Any] = {"documents": list(documents)} if documents else {}
    extra |= {"conversation": conversation} if conversation is not None else {}
    extra |= {"agent": agent} if agent is not None else {}
    request: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in messages],
        "max_tokens": max_tokens,
        "temperature": 0,
        "extra_body": extra,
    }
    return await (_streamed(client, request, heard) if stream else _whole(client, request))


async def _whole(client: openai.AsyncOpenAI, request: dict[str, Any]) -> Answer:
    sent = time.perf_counter()
    try:
        completion = await client.chat.completions.create(**request)
    except (openai.OpenAIError, httpx.HTTPError) as error:
        raise _failed(error, started=False) from error
    if not completion.choices or completion.usage is None:
        raise ChatFailed("the answer has no choice or no usage", status=0, started=False)
    took = time.perf_counter() - sent
    text = completion.choices[0].message.content or ""
    return _answer(text, took, took, completion.usage, _replica(completion))


async def _streamed(
    client: openai.AsyncOpenAI, request: dict[str, Any], heard: Callable[[str], None] | None
) -> Answer:
    sent = time.perf_counter()
    first: float | None = None
    parts: list[str] = []
    finished, usage, replica = False, None, None
    try:
        stream = await client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        async with stream:
            async for chunk in stream:
                for choice in chunk.choices:
                    if choice.delta.content:
                        first = first or time.perf_counter()
                        parts.append(choice.delta.content)
                        if heard is not None:
                            heard(choice.delta.content)
                    finished = finished or choice.finish_reason is not None
                usage = chunk.usage or usage
                replica = _replica(chunk) or replica
    except (openai.OpenAIError, httpx.HTTPError) as error:
        raise _failed(error, started=first is not None) from error
    done = time.perf_counter()
    if not finished or usage is None:
        raise ChatFailed("the stream ended early", status=0, started=first is not None)
    # An answer may be empty: its only token ended it, and came with the last chunk.
    return _answer("".join(parts), (first or done) - sent, done - sent, usage, replica)


def _replica(answer: BaseModel) -> str | None:
    """Of our extension of OpenAI's format, which the client keeps as an unknown field."""
    explained = (answer.model_extra or {}).get("cp_ray")
    replica = explained.get("replica") if isinstance(explained, dict) else None
    return replica if isinstance(replica, str) else None


def _answer(
    text: str, ttft_s: float, total_s: float, usage: CompletionUsage, replica: str | None
) -> Answer:
    details = usage.prompt_tokens_details
    return Answer(
        text=text,
        ttft_s=ttft_s,
        total_s=total_s,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        completion_tokens=usage.completion_tokens,
        replica=replica,
    )


def _failed(error: Exception, *, started: bool) -> ChatFailed:
    """Inside a stream, and where a connection broke, there is no status (any more): 0."""
    status = error.status_code if isinstance(error, openai.APIStatusError) else 0
    return ChatFailed(str(error) or type(error).__name__, status=status, started=started)


def _rebuilt(message: str, status: int, started: bool) -> ChatFailed:
    return ChatFailed(message, status=status, started=started)
