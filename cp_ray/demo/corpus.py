"""The corpus that every Python ships: the language reference's topics and docstrings.

No download, no licence question, and everybody can judge the answers. Deterministic for one
Python version: the same blocks, in the same order, on every machine.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.retrieval.bm25 import Document
from cp_ray.retrieval.chunking import Section, chunk, sections

MODULES = (
    "abc", "argparse", "asyncio", "bisect", "collections", "contextlib", "copy", "csv",
    "dataclasses", "datetime", "decimal", "enum", "functools", "heapq", "inspect", "io",
    "itertools", "json", "logging", "pathlib", "pickle", "queue", "random", "re", "statistics",
    "string", "subprocess", "tempfile", "textwrap", "threading", "typing", "unittest", "weakref",
)  # fmt: skip
"""Modules people ask about; importing them has no side effect."""

BUILTINS = ("bool", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple")
_SHORTEST = 12
"""A block of fewer words says nothing: most are 'See help(type(self))'."""


class Block(msgspec.Struct, frozen=True):
    """One chunk of a source. source: topic, module or file it was cut from."""

    id: str
    source: str
    title: str
    text: str

    def document(self) -> Document:
        """Render as an entry of `documents` in a request."""
        return {"id": self.id, "title": self.title, "text": self.text}


def python_corpus() -> tuple[Block, ...]:
    """Blocks of the reference topics, then of docstrings; equal texts occur once."""
    from pydoc_data.topics import topics

    sources = [(f"reference/{name}", topics[name]) for name in sorted(topics)]
    sources += [(f"builtins/{name}", _docstrings(f"builtins.{name}")) for name in BUILTINS]
    sources += [(f"library/{name}", _docstrings(name)) for name in MODULES]
    return _blocks(sources)


def folder_corpus(folder: Path) -> tuple[Block, ...]:
    """Blocks of every .txt and .md file under `folder`, by path; raises ConfigError for none."""
    if not folder.is_dir():
        raise ConfigError(f"--documents: {folder} is not a folder")
    files = sorted(p for p in folder.rglob("*") if p.suffix in {".txt", ".md"} and p.is_file())
    blocks = _blocks([(str(p.relative_to(folder)), _read(p)) for p in files])
    if not blocks:
        raise ConfigError(f"--documents: no .txt or .md file with text under {folder}")
    return blocks


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"--documents: {file} is not UTF-8 text ({error})") from error


def topic_document(topic: str) -> tuple[Block, ...]:
    """Blocks of one reference topic, in reading order: a long document for Chain-of-Agents."""
    from pydoc_data.topics import topics

    return _blocks([(f"reference/{topic}", topics[topic])])


def _blocks(sources: list[tuple[str, str]]) -> tuple[Block, ...]:
    seen: set[tuple[str, str]] = set()
    blocks: list[Block] = []
    for source, text in sources:
        number = 0
        for section in sections(text):
            title = section.heading or Path(source).name
            for part in chunk(section.text):
                # A topic often contains another whole: cut by section, its blocks are equal.
                if (title, part) in seen or len(part.split()) < _SHORTEST:
                    continue
                seen.add((title, part))
                blocks.append(Block(f"{source}/{number}", source, title, part))
                number += 1
    return tuple(blocks)


def _docstrings(path: str) -> str:
    """All public docstrings of a module or builtin type, as sections headed by their names."""
    found = [Section(path.removeprefix("builtins."), _doc(_load(path)))]
    found += [Section(name, doc) for name, doc in _members(path)]
    return "\n".join(f"# {s.heading}\n{s.text}\n" for s in found if s.text)


def _members(path: str) -> Iterator[tuple[str, str]]:
    owner = _load(path)
    prefix = path.removeprefix("builtins.")
    names = getattr(owner, "__all__", None) or [n for n in vars(owner) if not n.startswith("_")]
    for name in sorted(names):
        member = getattr(owner, name, None)
        if inspect.ismodule(member) or not (callable(member) or isinstance(member, property)):
            continue
        yield f"{prefix}.{name}", _doc(member)
        if inspect.isclass(member):
            for inner, function in sorted(vars(member).items()):
                if not inner.startswith("_") and callable(function):
                    yield f"{prefix}.{name}.{inner}", _doc(function)


def _load(path: str) -> object:
    module, _, name = path.rpartition(".")
    return (
        getattr(importlib.import_module(module), name) if module else importlib.import_module(path)
    )


def _doc(member: object) -> str:
    text = inspect.getdoc(member) or ""
    # A Markdown heading sign in a docstring is code, not a heading.
    return "\n".join(f" {line}" if line.startswith("#") else line for line in text.splitlines())
