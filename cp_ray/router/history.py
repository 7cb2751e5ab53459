"""The history in a chat request: which messages stand before which user message.

A link digests everything up to and including one user message. Two histories have the same link
exactly when they are the same up to there, so links name turns in the conversation's record.
"""

from __future__ import annotations

import hashlib
import json

from cp_ray.router.api import ChatRequest, Message


def digest(*texts: str) -> str:
    """Digest of texts and of where each ends."""
    state = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode()
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()


def chain(request: ChatRequest, model: str) -> tuple[str, ...]:
    """One link for each user message, in order. Model and tools are part of all of them."""
    link = digest(model, json.dumps(request.offered_tools, sort_keys=True))
    links = []
    for message in request.messages:
        link = digest(link, message.role, message.content, _rest(message))
        if message.role == "user":
            links.append(link)
    return tuple(links)


def last_user(request: ChatRequest) -> int:
    """Position of the message that carries this turn's question."""
    return max(i for i, message in enumerate(request.messages) if message.role == "user")


def _rest(message: Message) -> str:
    if not (message.tool_calls or message.tool_call_id or message.name):
        return ""
    return json.dumps([message.tool_calls, message.tool_call_id, message.name], sort_keys=True)
