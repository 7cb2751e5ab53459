"""A job: one request of a workload, and what becomes of it on its way through the fleet."""

from __future__ import annotations

import msgspec

from cp_ray.core.pages import Piece
from cp_ray.core.types import Context, RequestId
from cp_ray.replay.conversations import reference_tokens
from cp_ray.replay.trace import History, TraceRequest


class Job(msgspec.Struct, frozen=True):
    """One request as the workload has it. output_tokens: at least 1.

    head: pieces before the first block that the workload itself brings (an agent's instruction).
    after: goes when that job has ended, `pause_s` seconds later. remembers: its prompt begins with
    the whole of `after`'s prompt and answer (a conversation's later turn).
    """

    request: TraceRequest
    output_tokens: int
    head: tuple[Piece, ...] = ()
    after: RequestId | None = None
    pause_s: float = 0.0
    remembers: bool = False
    tenant: str = ""


class Live:
    """A job under way. Times in seconds of virtual time; NaN until they are known.

    context: blocks as sent, less those `repeated`, which are only referred to.
    cached: prompt tokens found in the cache when it was admitted.
    """

    __slots__ = (
        "arrived_s",
        "cached",
        "context",
        "ended_s",
        "first_s",
        "history",
        "job",
        "pieces",
        "prompt_tokens",
        "repeated",
        "replica",
        "request_id",
    )

    def __init__(self, job: Job, arrived_s: float, history: History | None) -> None:
        self.job = job
        self.request_id: RequestId = job.request.request_id
        self.arrived_s = arrived_s
        self.history = history
        self.first_s = self.ended_s = float("nan")
        self.cached = 0
        self.replica = -1
        self.context: Context = ()
        self.repeated: Context = ()
        self.pieces: tuple[Piece, ...] = ()
        self.prompt_tokens = 0
        self.order(job.request.context)

    def order(self, context: Context, repeated: Context = ()) -> None:
        """Lay the prompt out: head, earlier turns, blocks, references, question."""
        request = self.job.request
        self.context, self.repeated = context, repeated
        earlier = self.history.pieces if self.history else self.job.head
        if context == request.context:
            blocks: list[Piece] = list(zip(context, request.block_tokens, strict=True))
        else:
            lengths = request.lengths
            blocks = [(block, lengths[block]) for block in context]
        if repeated:
            seen = self.history.seen if self.history else ()
            tokens = reference_tokens(request.context, set(repeated), seen)
            blocks += [(("reference", self.request_id, n), t) for n, t in enumerate(tokens)]
        question: Piece = (("question", self.request_id), request.question_tokens)
        self.pieces = (*earlier, *blocks, question)
        self.prompt_tokens = sum(tokens for _, tokens in self.pieces)

    def block_tokens(self) -> tuple[int, int]:
        """Tokens of the blocks sent, and how many of them were found in the cache."""
        before = sum(
            tokens for _, tokens in (self.history.pieces if self.history else self.job.head)
        )
        lengths = self.job.request.lengths
        sent = sum(lengths[block] for block in self.context)
        return sent, max(0, min(self.cached - before, sent))

    def as_history(self) -> History:
        """What a later turn of the conversation begins with."""
        before = self.history.seen if self.history else frozenset()
        answer: Piece = (("answer", self.request_id), self.job.output_tokens)
        return History((*self.pieces, answer), before.union(self.context), self.request_id)
