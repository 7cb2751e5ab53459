"""Labels, order annotation (paper 5.3) and location annotation (paper 6).

Annotations name blocks by label. A label depends on content only, never on rank or position, so the
bytes of a block are the same in every prompt. An annotation stands behind the blocks that it names,
and of a label it says only the word that no other label up to its own turn has; what comes later
changes nothing (docs/decisions/0028-labels-are-words.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from cp_ray.core.label_words import WORDS

_HEADING = re.compile(r"\[Doc ([a-z]+ [a-z]+)\]")
_ORDER = re.compile(r"Read by priority: \[Docs ([a-z >]+)\] and answer the question\.\n\n")
_NAMED = re.compile(r"\[Doc ([a-z]+(?: [a-z]+)?)\]|\[Docs ([a-z -]+)\]")


def label_of(content: bytes) -> str:
    """Two words: 21.4 bits in 2 tokens.

    Two blocks of a prompt of 20 share a label once in 14,000 prompts. Neither is named then:
    their order stays as it was given, and no reference stands for them.
    """
    number = int.from_bytes(blake2b(content, digest_size=8).digest())
    number, first = divmod(number, len(WORDS))
    return f"{WORDS[first]} {WORDS[number % len(WORDS)]}"


def heading_label(piece: str) -> str | None:
    """Label of a block by its rendered heading; None for a piece that is no whole block."""
    found = _HEADING.match(piece)
    return found[1] if found else None


def short_names(labels: Sequence[str], among: Iterable[str]) -> list[str]:
    """The one word of each label that no other of `among` has, else both words."""
    found = Counter(word for label in {*among, *labels} for word in {*label.split(" ")})
    names = []
    for label in labels:
        own = (word for word in label.split(" ") if found[word] == 1)
        names.append(next(own, label))
    return names


def order_annotation(names: Sequence[str]) -> str:
    """Tell the model the original relevance ranking, best first (paper 5.3).

    Short, because it is prefilled with every reordered prompt: benchmarks/LOG.md has the count.
    """
    return f"Read by priority: [Docs {' > '.join(names)}] and answer the question.\n\n"


def order_renamed(annotation: str, labels: Sequence[str], among: Iterable[str]) -> str:
    """The same ranking once more blocks stand before it; any other text as it is.

    labels: of the blocks that it ranks. among: of all blocks that stand before it now.
    """
    ranked = ranked_labels(annotation, labels)
    return annotation if ranked is None else order_annotation(short_names(ranked, among))


def ranked_labels(annotation: str, labels: Sequence[str]) -> list[str] | None:
    """Best first, all of `labels`; None for a text that is no ranking of them."""
    found = _ORDER.fullmatch(annotation)
    if found is None:
        return None
    ranked = [str(_label_of_name(name, labels)) for name in found[1].split(" > ")]
    return ranked if sorted(ranked) == sorted(labels) else None


def _label_of_name(name: str, labels: Sequence[str]) -> str | None:
    """The one label that is so named."""
    meant = [label for label in labels if name in (label, *label.split(" "))]
    return meant[0] if len(meant) == 1 else None


def names_in(annotation: str) -> frozenset[str]:
    """What a location annotation or a ranking names; names of two words as one, with a hyphen."""
    names = set()
    for one, several in _NAMED.findall(annotation):
        names |= {one.replace(" ", "-")} if one else set(several.split(" "))
    return frozenset(names)


def location_annotation(names: Sequence[str]) -> str:
    """Stand in for blocks that earlier turns of this conversation already hold (paper 6).

    13 tokens, and one for each block but the first; two to three more where it needs both words.
    """
    listed = _listed(names) if len(names) > 1 else f"[Doc {names[0]}]"
    return f"Please refer to {listed} in the previous conversation.\n\n"


def ranked_locations(names: Sequence[str]) -> str:
    """Stand in for the blocks of a turn whose new ones lie between such that earlier turns hold.

    One sentence behind the new ones: all blocks of the turn, best first.
    """
    return f"Read by priority: {_listed(names)} of this conversation.\n\n"


def _listed(names: Sequence[str]) -> str:
    """A space parts names, so a name of two words is written as one."""
    return f"[Docs {' '.join(name.replace(' ', '-') for name in names)}]"
