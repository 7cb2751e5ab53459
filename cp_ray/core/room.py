"""How long a prompt waits for room: running requests hold their cache pages until they end.

Beyond the prefill ahead of it: an engine that batches gives an answer a token in each step, and a
step of prefill takes as long as fifty others, so while it prefills its answers hardly move; one
that answers beside its prefills gets that far for nothing. Either way what is left of an answer is
the time in which nothing is prefilled.
"""

from __future__ import annotations

from typing import Final

WEIGHT: Final = 0.02
"""Of one answer in the mean: about the last fifty count."""


class Room:
    """Owner of what is known of answers: mean seconds to the end in which nothing is prefilled."""

    def __init__(self) -> None:
        self.answer_s = 0.0

    def answered(self, seconds: float) -> None:
        """An answer took so long, prefills beside it not counted."""
        if not self.answer_s:
            self.answer_s = seconds
        self.answer_s += WEIGHT * (seconds - self.answer_s)

    def wait_s(self, pinned: int, need: int, capacity: int) -> float:
        """Seconds without prefill until `need` tokens are free.

        pinned: of `capacity`, what is taken or spoken for. Those running end evenly over one mean
        answer. They are what fits: what is spoken for beyond that waits itself, and frees nothing
        until it has run.
        """
        lacking = pinned + need - capacity
        running = min(pinned, capacity)
        return self.answer_s * lacking / running if lacking > 0 and running else 0.0
