"""Messages and documents to a prepared request, and after the plan to the prompt.

    head (template, system, earlier turns) | blocks | annotation | question | tail (template)

Blocks are placed before the last user message's text. Everything here is a pure function of the
request, the conversation record and the plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from cp_ray.core.annotation import order_annotation
from cp_ray.core.dedup import deduplicate
from cp_ray.core.prompt import Block, body, location_block, make_block
from cp_ray.core.types import BlockId, Context, HeadId, PlanRequest, RequestId
from cp_ray.errors import InvalidRequest
from cp_ray.router.api import ChatRequest, CompletionRequest, Document, Message
from cp_ray.router.auth import Tenant
from cp_ray.router.conversation import Record, Turn, digest, match, plain_turn
from cp_ray.router.tokenizer import Piece, PromptTokenizer

Reuse = Literal["plain", "route", "full"]
Request = ChatRequest | CompletionRequest


class Source(msgspec.Struct, frozen=True):
    """Where a block comes from. name: the client's id of it. position: in `documents`."""

    name: str
    position: int


class Prepared(msgspec.Struct, frozen=True):
    """One request before its plan.

    blocks: as they will stand in the prompt, best first; a repeated one is its location block.
    sources: of every block. repeated: blocks that an earlier turn holds, by the name of their
    source. question: the last user text. head, tail: what stands before the blocks and after the
    question. annotation_tokens: what an order annotation would add. record: to keep when the
    answer succeeded; its last turn lacks the pieces (`Finished` has them).
    """

    plan: PlanRequest
    blocks: tuple[Block, ...]
    sources: dict[BlockId, Source]
    repeated: tuple[str, ...]
    head: tuple[Piece, ...]
    question: str
    tail: tuple[Piece, ...]
    annotation_tokens: int
    record: Record | None

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt without an order annotation."""
        return self.plan.head_tokens + sum(self.plan.block_tokens) + self.plan.tail_tokens


class Finished(msgspec.Struct, frozen=True):
    """The prompt in planned order. user: texts of the last user message's content, in order."""

    prompt: tuple[int, ...]
    user: tuple[str, ...]


class Assembler:
    """Prepares and finishes the requests of one model."""

    def __init__(self, tokenizer: PromptTokenizer, model: str) -> None:
        self._tokenizer = tokenizer
        self._model = model

    def prepare(
        self,
        request: Request,
        tenant: Tenant,
        request_id: RequestId,
        *,
        reuse: Reuse = "full",
        record: Record | None = None,
    ) -> Prepared:
        """Cut, de-duplicate and count. Raises InvalidRequest where the chat template refuses."""
        turns: tuple[Turn, ...] = ()
        prelude, matched = "", False
        if isinstance(request, ChatRequest):
            prelude, turns, matched = self._history(request, record)
            head, question, tail = self._cut_chat(request, turns)
        else:
            head, question, tail = (), request.prompt, ()
        blocks, sources = blocks_of(request.documents, tenant)
        repeated: Context = ()
        if reuse == "full" and matched:
            seen = {block for turn in turns for block in turn.blocks}
            repeated = deduplicate(tuple(block.id for block in blocks), seen).repeated
        names = tuple(sources[block].name for block in repeated)
        full = tuple(block.id for block in blocks if block.id not in repeated)
        blocks, sources = _refer(blocks, sources, repeated, tenant)
        question_tokens = len(self._tokenizer.encode(question)) if question else 0
        plan = PlanRequest(
            request_id=request_id,
            head=self._head_id(head, tenant),
            head_tokens=self._count(head) + (0 if head else len(self._tokenizer.start)),
            context=tuple(block.id for block in blocks),
            block_tokens=tuple(len(self._tokenizer.encode(block.text)) for block in blocks),
            tail_tokens=question_tokens + self._count(tail),
            movable=reuse == "full" and not repeated and len(blocks) > 1,
            predecessor=record.request_id if matched and record is not None else None,
        )
        annotation = order_annotation([block.label for block in blocks]) if plan.movable else ""
        kept = Record(prelude, (*turns, Turn(digest(question), (), full)), request_id)
        return Prepared(
            plan=plan,
            blocks=blocks,
            sources=sources,
            repeated=names,
            head=head,
            question=question,
            tail=tail,
            annotation_tokens=len(self._tokenizer.encode(annotation)) if annotation else 0,
            record=kept if isinstance(request, ChatRequest) and request.conversation else None,
        )

    def finish(self, prepared: Prepared, order: Context) -> Finished:
        """The prompt with its blocks in `order`, a permutation of `prepared.plan.context`."""
        by_id = {block.id: block for block in prepared.blocks}
        user = (*body([by_id[block] for block in order], prepared.blocks), prepared.question)
        tokens = self._tokenizer.tokens
        middle = tokens([Piece(text) for text in user if text])
        head = tokens(prepared.head) if prepared.head else self._tokenizer.start
        return Finished(head + middle + tokens(prepared.tail), user)

    def _history(
        self, request: ChatRequest, record: Record | None
    ) -> tuple[str, tuple[Turn, ...], bool]:
        """Digest of the prelude, the earlier user messages, and whether the record is theirs."""
        last = _last_user(request.messages)
        systems = [m.content for m in request.messages[:last] if m.role in ("system", "developer")]
        tools = json.dumps(request.offered_tools, sort_keys=True)
        prelude = digest(self._model, tools, *systems)
        users = [m.content for m in request.messages[:last] if m.role == "user"]
        turns = match(record, prelude, users)
        if turns is not None:
            return prelude, turns, True
        return prelude, tuple(plain_turn(text) for text in users), False

    def _cut_chat(
        self, request: ChatRequest, turns: Sequence[Turn]
    ) -> tuple[tuple[Piece, ...], str, tuple[Piece, ...]]:
        """Head, question and tail; earlier user messages byte for byte as first sent."""
        messages = [self._message(index, m) for index, m in enumerate(request.messages)]
        last = _last_user(request.messages)
        question = request.messages[last].content
        earlier = iter(turns)
        contents: dict[int, tuple[str, ...]] = {}
        for index, message in enumerate(request.messages):
            if index < last and message.role == "user":
                contents[index] = next(earlier).pieces
            else:
                contents[index] = (message.content,)
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
        return tuple(sides[0]), question, tuple(sides[1])

    def _message(self, index: int, message: Message) -> dict[str, Any]:
        """As a chat template reads it; what the template shows beside the content is checked."""
        role = "system" if message.role == "developer" else message.role
        content = message.content
        if message.role == "user" and not content:
            content = " "  # an empty content leaves no mark, and its blocks would have no place
        shown: dict[str, Any] = {"role": role, "content": content}
        extra: dict[str, Any] = {}
        if message.tool_calls:
            extra["tool_calls"] = [_with_arguments(call) for call in message.tool_calls]
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

    def _count(self, pieces: Sequence[Piece]) -> int:
        return sum(len(self._tokenizer.encode(p.text, template=p.template)) for p in pieces)


def user_text(user: Sequence[str]) -> str:
    """A user message's content as one string."""
    return "".join(user)


def _check_shown(cut: Sequence[str | int], messages: Sequence[Message]) -> None:
    """A template that drops or repeats a user message would lose or repeat its blocks."""
    for index, message in enumerate(messages):
        if message.role == "user" and cut.count(index) != 1:
            raise InvalidRequest(
                f"messages.{index}: the chat template of this model shows this message "
                f"{cut.count(index)} times: send fewer messages, or use /v1/completions",
                param=f"messages.{index}",
            )


def _last_user(messages: Sequence[Message]) -> int:
    return max(index for index, message in enumerate(messages) if message.role == "user")


def blocks_of(
    documents: Sequence[Document], tenant: Tenant
) -> tuple[tuple[Block, ...], dict[BlockId, Source]]:
    """Distinct blocks, best first: equal documents collapse to the first."""
    blocks: dict[BlockId, Block] = {}
    sources: dict[BlockId, Source] = {}
    for position, document in enumerate(documents):
        region = tenant.region(public=document.public)
        block = make_block(region, document.title, document.text)
        if block.id not in blocks:
            blocks[block.id] = block
            sources[block.id] = Source(document.id or f"documents.{position}", position)
    return tuple(blocks.values()), sources


def _refer(
    blocks: tuple[Block, ...],
    sources: Mapping[BlockId, Source],
    repeated: Context,
    tenant: Tenant,
) -> tuple[tuple[Block, ...], dict[BlockId, Source]]:
    """Each repeated block becomes its location block, where it stood."""
    placed, placed_sources = [], {}
    for block in blocks:
        shown = block
        if block.id in repeated:
            shown = location_block(tenant.region(public=False), block)
        if shown.id not in placed_sources:  # two texts of one label refer to the same words
            placed.append(shown)
            placed_sources[shown.id] = sources[block.id]
    return tuple(placed), placed_sources


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Templates read a call's arguments as an object; OpenAI sends them as a JSON string."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
