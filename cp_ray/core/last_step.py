"""The step that ends a line of prompts: who gets a first token in it, and what may still join it.

An engine that batches fills its steps. A prompt that joins a line before the line's last step has
begun takes the room that is left there, and who would have ended in that step ends as much later:
it delays those ahead of it, who came first (docs/decisions/0030). An engine that prefills one
prompt at a time delays none of them; its steps have a size of 0.
"""

from __future__ import annotations

from typing import final


@final
class LastStep:
    """size: tokens of one step, 0 = none shared. tokens: planned in it. ends: prompts ending there.

    Never changed; a plain class, as `placement.Option` is.
    """

    __slots__ = ("ends", "size", "tokens")

    def __init__(self, size: int, tokens: int = 0, ends: int = 0) -> None:
        self.size = size
        self.tokens = tokens
        self.ends = ends

    def late_share(self, new: int) -> float:
        """Seconds by which those who end in it get late together, per second of a prompt's own.

        new: tokens of that prompt, which would join.
        """
        if not self.ends:
            return 0.0
        return self.ends * min(1.0, (self.size - self.tokens) / max(new, 1))

    def joined(self, new: int) -> LastStep:
        """The last step of the line with that prompt at its end."""
        if not self.size:
            return self
        tokens = self.tokens + new
        if tokens <= self.size:
            return LastStep(self.size, tokens, self.ends + 1)
        return LastStep(self.size, (tokens - 1) % self.size + 1, 1)


ALONE = LastStep(0)
"""Of an engine that shares no steps."""
