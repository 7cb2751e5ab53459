"""Messages and documents to a prepared request, and after the plan to the prompt.

head (template, system, earlier turns) | blocks | annotation | question | tail (template)

Blocks are placed before the last user message's text. Everything here is a pure function of the
request, the conversation's recorded turns and the plan.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from cp_ray.core.chunk_dedup import ChunkDedup
from cp_ray.core.prompt import Block, body, ranking_of, unclear
from cp_ray.core.types import BlockId, Context, HeadId, PlanRequest, RequestId
from cp_ray.errors import InvalidRequest
from cp_ray.router.api import ChatRequest, CompletionRequest, Message
from cp_ray.router.auth import Tenant
from cp_ray.router.conversation import MAX_TURNS, Turn
from cp_ray.router.history import chain, digest, last_user
from cp_ray.router.lifting import lift
from cp_ray.router.placing import Origin, Standing, ending_of, place
from cp_ray.router.tokenizer import Piece, PromptTokenizer, with_arguments

Reuse = Literal["plain", "route", "full"]
Request = ChatRequest | CompletionRequest


class Limits(msgspec.Struct, frozen=True):
    """Settings of assembly.

    partial_overlap_tokens: what a pointer must save, 0 = no pointers. lift: whether documents in
    messages become blocks, unless the request says. most, longest: documents of a request, and
    bytes of one, for those that are lifted.
    """

    partial_overlap_tokens: int = 0
    lift: bool = False
    most: int = 256
    longest: int = 1 << 20


class Kept(msgspec.Struct, frozen=True):
    """What to record of the turn when its answer succeeded; `Finished` has the pieces.

    link: which turn it is. seen: blocks a later turn may refer to. plain: (link, text) of the
    user messages before it that are not recorded and were sent as the client sends them.
    earlier_bytes: of the recorded turns before it.
    """

    link: str
    seen: tuple[BlockId, ...]
    plain: tuple[tuple[str, str], ...]
    earlier_bytes: int


class Prepared(msgspec.Struct, frozen=True):
    """One request before its plan.

    request: with the documents that were found in messages. blocks: as they will stand in the
    prompt, best first; a repeated one is its location block. origins: of every block. repeated:
    names of documents that an earlier turn holds. earlier: turns that are sent as first sent.
    head, ending, tail: what stands before the blocks, behind them in the user message, and after
    it. ids: tokens of the blocks. annotation_tokens: what an order annotation would add.
    kept: None = not recorded.
    """

    request: Request
    plan: PlanRequest
    blocks: tuple[Block, ...]
    origins: dict[BlockId, tuple[Origin, ...]]
    repeated: tuple[str, ...]
    earlier: tuple[Turn, ...]
    head: tuple[Piece, ...]
    ending: tuple[str, ...]
    tail: tuple[Piece, ...]
    ids: dict[BlockId, Sequence[int]]
    annotation_tokens: int
    kept: Kept | None

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt without an order annotation."""
        return self.plan.head_tokens + sum(self.plan.block_tokens) + self.plan.tail_tokens


class Finished(msgspec.Struct, frozen=True):
    """The prompt in planned order. user: texts of the last user message's content, in order.

    context: blocks in the order in which they are the first of `user`. annotation: among `user`,
    "" where the order needs none.
    """

    prompt: array[int]
    user: tuple[str, ...]
    context: Context
    annotation: str

    def turn(self, request_id: RequestId, kept: Kept) -> Turn:
        """What a later turn needs to know of this one."""
        return Turn(request_id, self.user, self.context, kept.seen)


class Assembler:
    """Prepares and finishes the requests of one model."""

    def __init__(
        self, tokenizer: PromptTokenizer, model: str, limits: Limits | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._limits = limits or Limits()

    def links(self, request: Request) -> tuple[str, ...]:
        """Names of the request's turns in the conversation's record; none outside conversations."""
        if not isinstance(request, ChatRequest) or request.conversation is None:
            return ()
        return chain(request, self._model)

    def prepare(
        self,
        request: Request,
        tenant: Tenant,
        request_id: RequestId,
        *,
        reuse: Reuse = "full",
        turns: Sequence[Turn] | None = (),
    ) -> Prepared:
        """Cut, de-duplicate and count. Raises InvalidRequest where the chat template refuses.

        turns: recorded ones that the history begins with, as `links` names them; None when they
        could not be read, and then those that may be there are left alone.
        """
        asked, links = request, self.links(request)
        known = turns or ()
        earlier = tuple(known[: max(len(links) - 1, 0)])
        begun: Turn | None = None
        if isinstance(request, ChatRequest):
            if len(links) == len(known) > 0 and request.messages[-1].role != "user":
                begun = known[-1]
            request = self._lift(request, tenant, earlier, begun)
            head, question, tail = self._cut_chat(request, earlier)
        else:
            head, question, tail = (), request.prompt, ()
        full = reuse == "full"
        # Behind earlier turns a head is this conversation's alone: shortening costs no sharing.
        shorten = full and earlier and self._limits.partial_overlap_tokens
        partial = ChunkDedup(self._tokens, self._limits.partial_overlap_tokens) if shorten else None
        placed = place(request.documents, tenant, earlier, begun, partial, refer=full)
        blocks = placed.blocks
        ending = ending_of(begun, blocks) if begun else (question,)
        before = begun or (earlier[-1] if earlier else None)
        ids = {b.id: self._tokenizer.encode(b.text, digest=b.digest) for b in blocks}
        plan = PlanRequest(
            request_id=request_id,
            head=self._head_id(head, tenant),
            head_tokens=self._count(head) + (0 if head else len(self._tokenizer.start)),
            context=tuple(block.id for block in blocks),
            block_tokens=tuple(len(ids[block.id]) for block in blocks),
            tail_tokens=sum(self._tokens(text) for text in ending if text) + self._count(tail),
            movable=full and not earlier and begun is None and can_be_ranked(blocks),
            predecessor=before.request_id if before else None,
        )
        annotation = ranking_of(blocks) if plan.movable else ""
        return Prepared(
            request=request,
            plan=plan,
            blocks=blocks,
            origins=placed.origins,
            repeated=placed.repeated,
            earlier=earlier,
            head=head,
            ending=ending,
            tail=tail,
            ids=ids,
            annotation_tokens=self._tokens(annotation) if annotation else 0,
            kept=_kept(asked, links, earlier, placed.seen, read=turns is not None)
            if 0 < len(links) <= MAX_TURNS
            else None,
        )

    def finish(self, prepared: Prepared, order: Context) -> Finished:
        """The prompt with its blocks in `order`, a permutation of `prepared.plan.context`."""
        by_id = {block.id: block for block in prepared.blocks}
        texts = body([by_id[block] for block in order], prepared.blocks)
        behind = [text for text in (*texts[len(order) :], *prepared.ending) if text]
        prompt = array("I", () if prepared.head else self._tokenizer.start)
        prompt += self._tokenizer.tokens(prepared.head)
        for block in order:
            prompt.extend(prepared.ids[block])
        for text in behind:
            prompt.extend(self._tokenizer.encode(text))
        prompt += self._tokenizer.tokens(prepared.tail)
        annotation = texts[-1] if len(texts) > len(order) else ""
        return Finished(prompt, (*texts[: len(order)], *behind), order, annotation)

    def _lift(
        self, request: ChatRequest, tenant: Tenant, earlier: Sequence[Turn], begun: Turn | None
    ) -> ChatRequest:
        asked = request.lift_documents
        if not (self._limits.lift if asked is None else asked):
            return request
        standing, limits = Standing(tenant, earlier, begun), self._limits
        return lift(
            request,
            standing.holds,
            most=limits.most,
            longest=limits.longest,
            nameable=standing.can_be_named,
        )

    def _cut_chat(
        self, request: ChatRequest, earlier: Sequence[Turn]
    ) -> tuple[tuple[Piece, ...], str, tuple[Piece, ...]]:
        """Head, question and tail; recorded user messages byte for byte as first sent."""
        messages = [self._message(index, m) for index, m in enumerate(request.messages)]
        last = last_user(request)
        recorded = iter(earlier)
        contents: dict[int, tuple[str, ...]] = {}
        for index, message in enumerate(request.messages):
            turn = next(recorded, None) if message.role == "user" and index < last else None
            contents[index] = turn.pieces if turn else (message.content,)
        cut = self._tokenizer.cut(messages, request.offered_tools)
        _check_shown(cut, request.messages)
        sides: tuple[list[Piece], list[Piece]] = ([], [])
        passed = 0
        for part in cut:
            if isinstance(part, str):
                sides[passed].append(Piece(part, template=True))
            elif part == last:
                passed = 1
            else:
                sides[passed].extend(Piece(text) for text in contents[part] if text)
        return tuple(sides[0]), request.messages[last].content, tuple(sides[1])

    def _message(self, index: int, message: Message) -> dict[str, Any]:
        """As a chat template reads it; what the template shows beside the content is checked."""
        role = "system" if message.role == "developer" else message.role
        content = message.content
        if message.role == "user" and not content:
            content = " "  # an empty content leaves no mark, and its blocks would have no place
        shown: dict[str, Any] = {"role": role, "content": content}
        extra: dict[str, Any] = {}
        if message.tool_calls:
            extra["tool_calls"] = [with_arguments(call) for call in message.tool_calls]
        if message.tool_call_id:
            extra["tool_call_id"] = message.tool_call_id
        if extra:
            self._tokenizer.refuse_special(
                json.dumps(extra, ensure_ascii=False), f"messages.{index}"
            )
        return {**shown, **extra}

    def _head_id(self, head: Sequence[Piece], tenant: Tenant) -> HeadId:
        texts = [text for piece in head for text in ("t" if piece.template else "u", piece.text)]
        return HeadId(digest(self._model, tenant.cache_salt or "", *texts))

    def _tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text))

    def _count(self, pieces: Sequence[Piece]) -> int:
        return sum(len(self._tokenizer.encode(p.text, template=p.template)) for p in pieces)


def can_be_ranked(blocks: Sequence[Block]) -> bool:
    """Whether an order annotation could tell their order."""
    return len(blocks) > 1 and not unclear((block.label, block.text) for block in blocks)


def _kept(
    request: Request,
    links: Sequence[str],
    earlier: Sequence[Turn],
    seen: tuple[BlockId, ...],
    *,
    read: bool,
) -> Kept:
    """request: as the client sent it. read: whether the records could be read."""
    messages = request.messages if isinstance(request, ChatRequest) else ()
    users = [message.content for message in messages if message.role == "user"]
    plain = list(zip(links, users, strict=True))[len(earlier) : -1] if read else []
    return Kept(links[-1], seen, tuple(plain), sum(turn.size for turn in earlier))


def _check_shown(cut: Sequence[str | int], messages: Sequence[Message]) -> None:
    """A template that drops or repeats a user message would lose or repeat its blocks."""
    for index, message in enumerate(messages):
        if message.role == "user" and cut.count(index) != 1:
            raise InvalidRequest(
                f"messages.{index}: the chat template of this model shows this message "
                f"{cut.count(index)} times: send fewer messages, or use /v1/completions",
                param=f"messages.{index}",
            )
