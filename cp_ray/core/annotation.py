"""Labels, order annotation (paper 5.3) and location annotation (paper 6).

Both annotations name blocks by label. A label depends on content only, never on rank or position,
so the bytes of a block are the same in every prompt. Every label named occurs in the prompt sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

_CONSONANTS, _VOWELS, _SYLLABLES = "bdfgklmnprstvz", "aeiou", 4
_SPOKEN = tuple(consonant + vowel for vowel in _VOWELS for consonant in _CONSONANTS)


def label_of(content: bytes) -> str:
    """Eight letters that can be spoken: 24.5 bits in 3 to 4 tokens (base32 takes 6 to 7).

    Two blocks of one prompt share a label once in 100,000 prompts of 20 blocks; the annotation
    is then ambiguous between these two, and nothing else.
    """
    number = int.from_bytes(blake2b(content, digest_size=8).digest())
    syllables = []
    for _ in range(_SYLLABLES):
        number, index = divmod(number, len(_SPOKEN))
        syllables.append(_SPOKEN[index])
    return "".join(syllables)


def order_annotation(labels: Sequence[str]) -> str:
    """Tell the model the original relevance ranking, best first (paper 5.3).

    Short, because it is prefilled with every reordered prompt: benchmarks/LOG.md has the count.
    """
    ranking = " > ".join(f"[Doc {label}]" for label in labels)
    return f"Read by priority: {ranking} and answer the question.\n\n"


def location_annotation(labels: Sequence[str]) -> str:
    """Stand in for blocks that earlier turns of this conversation already hold (paper 6).

    Blocks that follow each other share a sentence: 16 tokens for one, 8 for each further one.
    """
    named = ", ".join(f"[Doc {label}]" for label in labels)
    return f"Please refer to {named} in the previous conversation.\n\n"
