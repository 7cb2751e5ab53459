"""Conversations side by side: turns in order, each prompt behind all of its earlier turns.

The paper's mixed workload (table 3b): N conversations are under way at a time; when one ends the
next begins. A window holds one turn of each. An answer is computed with the turn that follows it:
whether an engine finds its own output again depends on the chat template.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import msgspec

from cp_ray.core.pages import Piece
from cp_ray.replay.policies import Sent
from cp_ray.replay.trace import History, TraceRequest

REFERENCE_TOKENS = 16
"""A location annotation in place of a block: counted with SmolLM2's tokenizer."""
FURTHER_TOKENS = 8
"""Each further block of the same annotation."""


def pieces_of(sent: Sent) -> list[Piece]:
    """The prompt as sent: earlier turns, blocks, references, a question that no other has."""
    request = sent.request
    lengths = request.lengths
    earlier = request.history.pieces if request.history else ()
    blocks: list[Piece] = [(block, lengths[block]) for block in sent.context]
    repeated = set(sent.repeated)
    references: list[Piece] = []
    for again, run in itertools.groupby(request.context, repeated.__contains__):
        if again:
            first, *rest = run
            tokens = REFERENCE_TOKENS + FURTHER_TOKENS * len(rest)
            references.append((("reference", request.request_id, first), tokens))
    question: Piece = (("question", request.request_id), request.question_tokens)
    return [*earlier, *blocks, *references, question]


class SideBySide:
    """Serves windows of at most `count` turns, one of each conversation under way."""

    def __init__(self, requests: Sequence[TraceRequest], count: int) -> None:
        turns: dict[str, deque[TraceRequest]] = {}
        for request in requests:
            turns.setdefault(request.conversation or request.request_id, deque()).append(request)
        self._waiting = deque(turns.values())
        self._under_way: list[deque[TraceRequest]] = []
        self._count = count
        self._history: dict[str, History] = {}

    def next_window(self) -> list[TraceRequest]:
        """One turn of each, with its history; empty at the end."""
        self._under_way = [turns for turns in self._under_way if turns]
        while self._waiting and len(self._under_way) < self._count:
            self._under_way.append(self._waiting.popleft())
        return [self._with_history(turns.popleft()) for turns in self._under_way]

    def answered(self, sent: Sent) -> None:
        """The turn as sent, and its answer, are part of the conversation from now on."""
        request = sent.request
        if not request.conversation:
            return
        before = request.history.seen if request.history else frozenset()
        answer: Piece = (("answer", request.request_id), request.answer_tokens)
        self._history[request.conversation] = History(
            (*pieces_of(sent), answer), before.union(sent.context), request.request_id
        )

    def _with_history(self, request: TraceRequest) -> TraceRequest:
        history = self._history.pop(request.conversation, None) if request.conversation else None
        return msgspec.structs.replace(request, history=history)
