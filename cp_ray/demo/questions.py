"""The questions of the demo: ours about Python, or the user's own file."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from cp_ray.errors import ConfigError

Conversation = tuple[str, ...]
"""User turns in order; most have one."""


class ChainQuestions(msgspec.Struct, frozen=True):
    """Questions about one long document. topic: name of a Python reference topic."""

    topic: str
    questions: tuple[str, ...]


class Questions(msgspec.Struct, frozen=True):
    """Our own file: conversations for RAG, and questions for Chain-of-Agents."""

    conversations: tuple[Conversation, ...]
    chain: ChainQuestions


def python_questions() -> Questions:
    """Questions about the Python language, as users would ask them."""
    text = Path(__file__).with_name("questions.json").read_bytes()
    return msgspec.json.decode(text, type=Questions)


def read_questions(path: Path) -> tuple[Conversation, ...]:
    """Read one question a line, or JSON: a list of questions and of lists of turns.

    Raises ConfigError that names the file, the entry and the fix.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--questions: cannot read {path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--questions: {path} is not UTF-8 text ({error})") from error
    if path.suffix == ".json" or text.lstrip().startswith("["):
        conversations = _from_json(path, text)
    else:
        conversations = tuple((line.strip(),) for line in text.splitlines() if line.strip())
    if not conversations:
        raise ConfigError(f"--questions: {path} holds no question; write one a line")
    return conversations


def _from_json(path: Path, text: str) -> tuple[Conversation, ...]:
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--questions: {path} is no JSON ({error})") from error
    if not isinstance(entries, list):
        raise ConfigError(f"--questions: {path} must hold a list of questions or of lists of turns")
    found: list[Conversation] = []
    for number, entry in enumerate(entries):
        turns = [entry] if isinstance(entry, str) else entry
        well_formed = isinstance(turns, list) and all(isinstance(t, str) for t in turns)
        if not well_formed or not turns or not all(t.strip() for t in turns):
            raise ConfigError(
                f"--questions: entry {number} of {path} must be a question, or a list of the "
                "turns of one conversation, none empty"
            )
        found.append(tuple(turns))
    return tuple(found)
