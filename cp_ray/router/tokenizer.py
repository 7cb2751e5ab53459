"""Piecewise tokenization: a chat template cut at its contents, each piece tokenized alone.

Block borders never merge, so token counts add up and equal blocks give equal tokens. Template text
may hold special tokens; what a client wrote never becomes one (`<|im_end|>` in a document stays
text).
"""

from __future__ import annotations

import re
import secrets
import threading
import zlib
from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from cp_ray.core.prompt import text_digest
from cp_ray.errors import ConfigError, InvalidRequest
from cp_ray.router.limits import read_json

CACHED_TOKENS = 8_000_000
"""Tokens of pieces kept where nothing else is set, 4 bytes each."""
PIECE_TOKENS = 64
"""What a piece counts beside its own: key, array and entry take 250 bytes, however short it is."""

_MARK = f"cpRay{secrets.token_hex(12)}x"
"""Stands for a content while the template is rendered; no client can know it."""
_MARKS = re.compile(_MARK + r"(\d+)z")


class Piece(msgspec.Struct, frozen=True):
    """Text that is tokenized alone. template: it may hold special tokens."""

    text: str
    template: bool = False


class PromptTokenizer(ABC):
    """Renders a chat template and encodes pieces; subclasses say how, this one remembers."""

    start: tuple[int, ...] = ()
    """Tokens that a prompt without chat template begins with."""
    special_tokens: frozenset[str] = frozenset()

    def __init__(self, cached_tokens: int = CACHED_TOKENS) -> None:
        self._cache: OrderedDict[bytes, array[int]] = OrderedDict()
        self._cached = 0
        self._most_cached = cached_tokens
        self._lock = threading.Lock()  # large prompts are assembled on a thread

    @abstractmethod
    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        add_generation_prompt: bool,
    ) -> str:
        """The chat template's text. Raises InvalidRequest when the template refuses."""

    @abstractmethod
    def _encode(self, text: str, *, template: bool) -> Sequence[int]: ...

    def encode(
        self, text: str, *, template: bool = False, digest: bytes | None = None
    ) -> Sequence[int]:
        """Token ids of one piece, without any start or end token; O(1) for a piece seen before.

        digest: `text_digest` of the text, where it is known.
        """
        key = (b"t" if template else b"u") + (digest or text_digest(text))
        with self._lock:
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
                return known
        ids = array("I", self._encode(text, template=template))
        with self._lock:
            if key not in self._cache:
                self._cache[key] = ids
                self._cached += len(ids) + PIECE_TOKENS
            while self._cached > self._most_cached:
                self._cached -= len(self._cache.popitem(last=False)[1]) + PIECE_TOKENS
        return ids

    @property
    def cached_tokens(self) -> int:
        """Tokens of the pieces kept, with what each counts beside its own."""
        return self._cached

    def tokens(self, pieces: Sequence[Piece]) -> array[int]:
        """Concatenated ids of pieces."""
        ids: array[int] = array("I")
        for piece in pieces:
            ids.extend(self.encode(piece.text, template=piece.template))
        return ids

    def cut(
        self, messages: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]] | None
    ) -> list[str | int]:
        """Render with every content taken out: template texts, and positions in `messages`.

        An empty content is no piece. Raises InvalidRequest when the template drops or repeats
        tools it cannot show, or when tools hold special tokens.
        """
        marked = [
            {**message, "content": f"{_MARK}{index}z" if message["content"] else ""}
            for index, message in enumerate(messages)
        ]
        rendered = self.render(marked, tools, add_generation_prompt=True)
        if tools is not None:
            self._check_tools(marked, tools, rendered)
        parts = _MARKS.split(rendered)
        cut: list[str | int] = []
        for index, part in enumerate(parts):
            if index % 2:
                cut.append(int(part))
            elif part:
                cut.append(part)
        return cut

    def _check_tools(
        self, marked: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]], rendered: str
    ) -> None:
        if rendered == self.render(marked, None, add_generation_prompt=True):
            raise InvalidRequest(
                "tools: the chat template of this model does not show tools to it: "
                "leave them out, or describe them in the system message",
                param="tools",
                code="unsupported_parameter",
            )
        self.refuse_special(msgspec.json.encode(tools).decode(), "tools")

    def refuse_special(self, text: str, param: str) -> None:
        """Raise InvalidRequest when template text that a client wrote holds a special token."""
        found = next((token for token in self.special_tokens if token in text), None)
        if found is not None:
            raise InvalidRequest(
                f"{param}: holds {found!r}, a special token of this model: remove it", param=param
            )


def with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Templates read a call's arguments as an object; OpenAI sends them as a JSON string."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = read_json(function["arguments"])
    except InvalidRequest:  # no object, or none that could be shown
        return call
    return {**call, "function": {**function, "arguments": arguments}}


class HuggingFaceTokenizer(PromptTokenizer):
    """The model's own tokenizer and chat template, by `transformers`."""

    def __init__(self, path: str, cached_tokens: int = CACHED_TOKENS) -> None:
        """Load from a folder or by a hub name; raises ConfigError when that fails."""
        super().__init__(cached_tokens)
        from tokenizers import Tokenizer
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(path)
            text = self._tokenizer.backend_tokenizer.to_str()
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"model: no fast tokenizer at {path}: name a model that has a tokenizer.json "
                f"({error})",
                param="model",
            ) from error
        self._template_encoder = Tokenizer.from_str(text)
        self._text_encoder = Tokenizer.from_str(text)
        self._text_encoder.encode_special_tokens = True  # "encode" them as the text they are
        for encoder in (self._template_encoder, self._text_encoder):
            encoder.no_truncation()
            encoder.no_padding()
        self.start = tuple(self._tokenizer("").input_ids)
        self.special_tokens = frozenset(
            token.content
            for token in self._tokenizer.added_tokens_decoder.values()
            if token.special
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        add_generation_prompt: bool,
    ) -> str:
        """See PromptTokenizer."""
        from jinja2 import TemplateError

        if self._tokenizer.chat_template is None:
            raise InvalidRequest(
                "messages: this model has no chat template: use /v1/completions", param="messages"
            )
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages),
                    tools=tools,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                )
            )
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise InvalidRequest(
                f"messages: the chat template of this model refuses them ({error}): "
                "change the roles or their order",
                param="messages",
            ) from error

    def _encode(self, text: str, *, template: bool) -> Sequence[int]:
        encoder = self._template_encoder if template else self._text_encoder
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        return ids


def _word_ids(text: str) -> tuple[int, ...]:
    return tuple(
        _FIRST + zlib.crc32(w.encode()) % ((1 << 31) - _FIRST) for w in _WORD.findall(text)
    )


_WORD = re.compile(r" ?\w{1,8}|\s|[^\w\s]")
_FIRST = 16
"""Ids below are the special tokens'."""


class _AfterSpace(dict[str, tuple[int, ...]]):
    """Ids of a space and a text without one; short ones are remembered, at most 1 MB of them."""

    _MOST, _LONGEST = 1 << 12, 32

    def __missing__(self, text: str) -> tuple[int, ...]:
        ids = _word_ids(f" {text}")
        if len(text) <= self._LONGEST:
            if len(self) >= self._MOST:
                self.clear()
            self[text] = ids
        return ids


class WordTokenizer(PromptTokenizer):
    """Deterministic, without a model: for the simulated engine. Ids are hashes of word pieces.

    A token holds a space at its beginning only, so a text may be cut before each of them.
    """

    special_tokens = frozenset({"<|im_start|>", "<|im_end|>"})
    _SPECIAL = re.compile(r"(<\|im_start\|>|<\|im_end\|>)")

    def __init__(self, cached_tokens: int = CACHED_TOKENS) -> None:
        super().__init__(cached_tokens)
        self._after_space = _AfterSpace()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        add_generation_prompt: bool,
    ) -> str:
        """ChatML; tools stand in a system message of their own, as JSON."""
        shown = [{"role": "system", "content": f"Tools: {_json(tools)}"}] if tools else []
        lines = []
        for message in [*shown, *messages]:
            calls = f"\n{_json(message['tool_calls'])}" if message.get("tool_calls") else ""
            lines.append(f"<|im_start|>{message['role']}\n{message['content']}{calls}<|im_end|>\n")
        return "".join(lines) + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    def _encode(self, text: str, *, template: bool) -> Sequence[int]:
        ids: list[int] = []
        for position, part in enumerate(self._SPECIAL.split(text) if template else [text]):
            if position % 2:
                ids.append(1 if part == "<|im_start|>" else 2)
                continue
            first, *others = part.split(" ")
            ids += _word_ids(first)
            ids += chain.from_iterable(map(self._after_space.__getitem__, others))
        return ids


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
