"""Reading a prompt's references from its text alone, as a model has to."""

from __future__ import annotations

import re
from collections.abc import Sequence

HEADING = re.compile(r"(?m)^\[Doc ([a-z]+ [a-z]+)\]")
_FULL = re.compile(r"\[Doc ([a-z]+ [a-z]+)[\]:]")
_LIST = re.compile(r"(?:Please refer to|Read by priority:) \[Docs? ([^\]]+)\]")
_Sent = tuple[str, str, str]
"""Heading, text with its pointers expanded, text as sent."""
_POINTER = re.compile(r'\[Doc ([a-z]+ [a-z]+): "([^"]*)" to "([^"]*)"\]')


def names_in(annotation: str) -> list[str]:
    """Names that an annotation lists; none where the text is no annotation."""
    found = _LIST.match(annotation)
    if found is None:
        return []
    if " > " in found[1] or annotation.startswith("Please refer to [Doc "):
        return found[1].split(" > ")
    return [name.replace("-", " ") for name in found[1].split(" ")]


def resolve(name: str, headings: Sequence[str]) -> str:
    """The one label that has this name, among those that stand above."""
    fits = {label for label in headings if name == label or name in label.split(" ")}
    assert len(fits) == 1, f"{name} is {fits}"
    return fits.pop()


def assert_resolves(prompt: str) -> None:
    """Every label and name in the prompt leads to one label above it."""
    headings = [(found.start(), found[1]) for found in HEADING.finditer(prompt)]
    for full in _FULL.finditer(prompt):
        assert any(full[1] == label for at, label in headings if at <= full.start())
    for listed in _LIST.finditer(prompt):
        above = [label for at, label in headings if at < listed.start()]
        names = names_in(listed[0])
        assert len({resolve(name, above) for name in names}) == len(names) > 0


def documents_of(
    earlier: Sequence[str], blocks: Sequence[str], annotation: str = ""
) -> list[tuple[str, str]]:
    """(heading, text) of a turn's documents, best first, from what is sent and nothing else.

    earlier: pieces of the turns before, blocks and annotations. blocks: of this turn, in order.
    annotation: the order annotation, if there is one.
    """
    above: list[_Sent] = []
    for piece in earlier:
        _stand(piece, above)
    told: list[str] | None = names_in(annotation) or None
    found: list[_Sent] = []
    for piece in blocks:
        if _stand(piece, above):
            found.append(above[-1])
        elif piece.startswith("Read by priority"):
            told = names_in(piece)
        else:
            found += [_one(name, above) for name in names_in(piece)]
    if told is not None:
        named = [_one(name, above) for name in told]
        assert all(block in named for block in found), "a block that the ranking leaves out"
        found = named
    return [(heading, text) for heading, text, _ in found]


def _stand(piece: str, above: list[_Sent]) -> bool:
    """Add a block as it reads with its pointers expanded; False where the piece is none."""
    if HEADING.match(piece) is None:
        return False
    heading, _, text = piece.partition("\n")
    parts, done = [], 0
    for pointer in _POINTER.finditer(text):
        _, _, source = _one(pointer[1], above)
        first = source.index(pointer[2])
        last = source.index(pointer[3], first) + len(pointer[3])
        parts += [text[done : pointer.start()], source[first:last]]
        done = pointer.end()
    whole = "".join([*parts, text[done:]]).removesuffix("\n\n")
    above.append((heading, whole, text))
    return True


def _one(name: str, above: Sequence[_Sent]) -> _Sent:
    headings = [match[1] for heading, _, _ in above if (match := HEADING.match(heading))]
    label = resolve(name, headings)
    fits = [one for one in above if one[0].startswith(f"[Doc {label}]")]
    assert len({text for _, text, _ in fits}) == 1, f"{label} is several documents"
    return fits[0]
