"""What clients may send: OpenAI's chat and completion requests, and cp_ray's own fields.

`documents` (rank order, best first), `conversation`, `agent` and `lift_documents` (documents inside
messages count as `documents`; default: the setting of that name) are ours; every other name is
OpenAI's. Fields that OpenAI knows and that change nothing here are accepted and ignored; fields
whose silent loss would give a wrong answer are refused (`REFUSED`); unknown names are refused too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, model_validator

from cp_ray.workers.engine import Sampling

HARMLESS = frozenset(
    (
        "user",
        "store",
        "metadata",
        "service_tier",
        "parallel_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "cache_salt",  # the salt is the tenant's: what a client sends would open others' caches
    )
)


class Harmless(msgspec.Struct, frozen=True):
    """Values that ask for nothing that is missing, and what to do about any other.

    schema: JSON Schema of those values. Null counts as absent for every field.
    """

    schema: dict[str, Any]
    fix: str

    def allows(self, value: Any) -> bool:
        """Whether the value is one of them."""
        if "enum" in self.schema:
            return any(_same(value, known) for known in self.schema["enum"])
        return isinstance(value, dict) and value.get("type") == "text"


def _same(value: Any, known: Any) -> bool:
    """As JSON has it: 1 is 1.0, but no boolean."""
    return value == known and isinstance(value, bool) == isinstance(known, bool)


_ONE = {"enum": [1]}
_ABSENT: dict[str, Any] = {"enum": [False, [], {}]}
_TEXT_FORMAT = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"const": "text"}},
}
REFUSED: Mapping[str, Harmless] = {
    "n": Harmless(_ONE, "only n=1 is built: send the request n times"),
    "best_of": Harmless(_ONE, "only best_of=1 is built: leave it out"),
    "logprobs": Harmless({"enum": [False]}, "log probabilities are not built: leave it out"),
    "top_logprobs": Harmless({"enum": []}, "log probabilities are not built: leave it out"),
    "logit_bias": Harmless(_ABSENT, "logit_bias is not built: leave it out"),
    "echo": Harmless(_ABSENT, "echo is not built: leave it out and prepend the prompt yourself"),
    "suffix": Harmless(_ABSENT, "insertion is not built: leave it out"),
    "response_format": Harmless(
        _TEXT_FORMAT,
        'only {"type": "text"} is built: leave it out and ask for the format in the prompt',
    ),
    "tool_choice": Harmless(
        {"enum": ["auto", "none"]},
        'only "auto" and "none" are built: leave it out, or send "auto"',
    ),
    "modalities": Harmless({"enum": [["text"]]}, 'only ["text"] is built: leave it out'),
    "audio": Harmless(_ABSENT, "audio is not built: leave it out"),
    "functions": Harmless(_ABSENT, "deprecated by OpenAI: send `tools`"),
    "function_call": Harmless(_ABSENT, "deprecated by OpenAI: send `tool_choice`"),
    "web_search_options": Harmless(_ABSENT, "web search is not built: leave it out"),
    "reasoning_effort": Harmless(_ABSENT, "reasoning_effort is not built: leave it out"),
    "verbosity": Harmless(_ABSENT, "verbosity is not built: leave it out"),
}
"""Fields whose silent loss would give a wrong answer."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Document(BaseModel):
    """One context block as the client sends it; a bare string is its text.

    public: every tenant may share its cached prefix (never its text).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | None = None
    title: str | None = None
    text: str
    public: StrictBool = False

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"text": value}
        if not isinstance(value, dict):
            raise ValueError(  # noqa: TRY004 - pydantic reports only ValueError
                f"a {_json_type(value)} is no document: send a string, or an object "
                '{"id", "title", "text", "public"}'
            )
        return value


def _flatten(value: Any) -> Any:
    """Content parts to one string; only text can be put in front of a text model."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return value
    texts = []
    for position, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else _json_type(part)
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        elif kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise ValueError(
                f'part {position} is of type {kind!r}: only {{"type": "text", "text": "..."}} '
                "parts are taken; remove it or send its content as text"
            )
    return "".join(texts)


class Message(_Body):
    """One chat message. content: its text, "" where the client sent none."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_flatten)] = ""
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class StreamOptions(_Body):
    """include_usage: one more chunk before [DONE], without choices, with the usage."""

    include_usage: StrictBool = False


def _stops(value: Any) -> Any:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


Stop = Annotated[str, Field(min_length=1)]


def _whole(value: Any) -> Any:
    """To JSON 5.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Strict: what is no number in JSON is none here, either; the published schema says the same. It
# holds the limits that stand before a validator, not those behind it.
_WHOLE = BeforeValidator(_whole)
Tokens = Annotated[int, Field(strict=True, ge=1), _WHOLE]


def _default(value: float) -> BeforeValidator:
    """OpenAI sends null for "the default"."""
    return BeforeValidator(lambda given: value if given is None else given)


class Generation(_Body):
    """What chat and completion requests share. Ranges are OpenAI's."""

    model: str
    documents: tuple[Document, ...] = ()
    conversation: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    agent: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    stream: Annotated[StrictBool, _default(False)] = False
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2, strict=True), _default(1.0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1, strict=True), _default(1.0)] = 1.0
    top_k: Annotated[int, Field(strict=True, ge=0, lt=1 << 31), _WHOLE, _default(0)] = 0
    seed: Annotated[int, Field(strict=True, ge=-(1 << 63), lt=1 << 63), _WHOLE] | None = None
    stop: Annotated[tuple[Stop, ...], Field(max_length=4), BeforeValidator(_stops)] = ()
    presence_penalty: Annotated[float, Field(ge=-2, le=2, strict=True), _default(0.0)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, strict=True), _default(0.0)] = 0.0
    ignore_eos: StrictBool = False

    @property
    def output_limit(self) -> int | None:
        """Output tokens the client asked for; None = it left it to us."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_tokens: int) -> Sampling:
        """The engine's parameters, at most `max_tokens` of output."""
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=self.stop,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            ignore_eos=self.ignore_eos,
        )


class ChatRequest(Generation):
    """POST /v1/chat/completions. Blocks go before the last user message's text."""

    messages: tuple[Message, ...]
    max_completion_tokens: Tokens | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    lift_documents: StrictBool | None = None

    @property
    def output_limit(self) -> int | None:
        """`max_completion_tokens`, or the older name for it."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def offered_tools(self) -> list[dict[str, Any]] | None:
        """Tools the template shall show to the model; None where there are none."""
        return None if self.tool_choice == "none" or not self.tools else self.tools


def _single(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    if isinstance(value, list):
        raise ValueError("one text is taken: send a request for each prompt")  # noqa: TRY004 - as above
    return value


class CompletionRequest(Generation):
    """POST /v1/completions. Blocks go before the prompt."""

    prompt: Annotated[str, Field(min_length=1), BeforeValidator(_single)]

    @property
    def output_limit(self) -> int | None:
        """OpenAI's default for this route is 16 tokens."""
        return self.max_tokens or 16


class Score(BaseModel):
    """POST /v1/score: how good one answer was, for the guardrail. id: the answer's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(min_length=1, max_length=128)]
    score: Annotated[float, Field(ge=0, le=1, strict=True)]

    @property
    def request_id(self) -> str:
        """Without the prefix that says which route answered."""
        return self.id.removeprefix("chatcmpl-").removeprefix("cmpl-")


def _json_type(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", list: "list", dict: "object"}
    return "null" if value is None else names.get(type(value), "string")
