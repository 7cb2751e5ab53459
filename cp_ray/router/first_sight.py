"""Token counts for a Router whose prompts are made elsewhere: exact for what comes a second time.

On the direct data plane a Router needs to know how long texts are, and the replica tokenizes them
anyway. Most texts that are seen for the first time are never seen again: for those a guess will do,
as nobody holds them yet. What comes again is counted (and then known), before anything is reused.
"""

from __future__ import annotations

from collections import OrderedDict

from cp_ray.core.seen import bound
from cp_ray.router.tokenizer import PromptTokenizer

SHORT = 512
"""Characters up to which a text is counted at once."""
SEEN_ONCE = 1 << 17
"""Texts remembered that were seen, some 150 bytes each."""
USUAL = 4.0
"""Characters of a token where nothing has been counted yet."""
LEARNT = 1 << 20
"""Characters counted after which earlier ones count half."""


class FirstSight:
    """Owner of what was seen once, and of the usual length of a token."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self._once: OrderedDict[int, None] = OrderedDict()
        self._characters = USUAL
        self._tokens = 1.0

    def count(self, text: str, *, template: bool = False) -> int:
        """Tokens of one piece; a guess for a long one that is new."""
        if template or len(text) <= SHORT:
            return self._tokenizer.count(text, template=template)
        if self._is_new(text):
            return max(1, round(len(text) * self._tokens / self._characters))
        tokens = self._tokenizer.count(text)
        self._learn(len(text), tokens)
        return tokens

    def _is_new(self, text: str) -> bool:
        key = hash(text)
        if key in self._once:
            self._once.move_to_end(key)
            return False
        self._once[key] = None
        bound(self._once, SEEN_ONCE)
        return True

    def _learn(self, characters: int, tokens: int) -> None:
        self._characters += characters
        self._tokens += tokens
        if self._characters > LEARNT:
            self._characters /= 2
            self._tokens /= 2
