"""Conversations side by side: turns in order, each prompt behind all of its earlier turns.

The paper's mixed workload (table 3b): N conversations are under way at a time; when one ends the
next begins. A window holds one turn of each. An answer is computed with the turn that follows it:
whether an engine finds its own output again depends on the chat template.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache

import msgspec

from cp_ray.core.annotation import label_of, short_names
from cp_ray.core.pages import Piece
from cp_ray.core.types import BlockId, Context
from cp_ray.replay.policies import Sent
from cp_ray.replay.trace import History, TraceRequest

LOCATION_TOKENS = 12
"""A location annotation without names: counted with SmolLM2's tokenizer, as all below."""
RANKING_TOKENS = 12
"""A sentence that names all blocks of a turn, without names."""
LIST_TOKENS = 1
"""What a list of several names has beside them."""
FULL_NAME_TOKENS = 4
"""A name of both words of a label, in a list: 3.6 on average; one of a single word is one token."""


def reference_tokens(
    context: Context, repeated: Container[BlockId], seen: Iterable[BlockId]
) -> list[int]:
    """Tokens of each annotation that stands for blocks of `context` (router/placing.py).

    repeated: those that earlier turns hold. seen: all blocks of the earlier turns.
    """
    runs = [(a, list(r)) for a, r in itertools.groupby(context, repeated.__contains__)]
    referred = [run for again, run in runs if again]
    if not referred:
        return []
    fixed = LOCATION_TOKENS
    if len(referred) > 1:
        referred, fixed = [list(context)], RANKING_TOKENS
    among = [_label(block) for block in {*seen, *context}]
    tokens = []
    for run in referred:
        names = short_names([_label(block) for block in run], among)
        several = LIST_TOKENS if len(run) > 1 else 0
        tokens.append(fixed + several + sum(_name_tokens(name) for name in names))
    return tokens


@lru_cache(maxsize=1 << 17)
def _label(block: BlockId) -> str:
    """A trace has no texts; a label of the id is as good as one of the text."""
    return label_of(block.encode())


def _name_tokens(name: str) -> int:
    return FULL_NAME_TOKENS if " " in name else 1


def pieces_of(sent: Sent) -> list[Piece]:
    """The prompt as sent: earlier turns, blocks, references, a question that no other has."""
    request = sent.request
    lengths = request.lengths
    history = request.history
    blocks: list[Piece] = [(block, lengths[block]) for block in sent.context]
    seen = history.seen if history else ()
    tokens = reference_tokens(request.context, set(sent.repeated), seen) if sent.repeated else []
    references: list[Piece] = [
        (("reference", request.request_id, place), count) for place, count in enumerate(tokens)
    ]
    question: Piece = (("question", request.request_id), request.question_tokens)
    return [*(history.pieces if history else ()), *blocks, *references, question]


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
