"""What a router may know of the fleet, exact and at once: better than any rival has it.

Requests and tokens are those the router has sent; cached prefixes are the engines' own.
"""

from __future__ import annotations

from collections.abc import Sequence

from cp_ray.core.pages import Layout, Piece
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.replay.fleet.job import Live


class FleetView:
    """Per replica: running requests, those without a first token, tokens yet to prefill.

    prefill_tokens: by what was missing in the cache when each was sent. context_tokens: prompts of
    all that run, the stand-in for used KV pages.
    """

    def __init__(self, caches: Sequence[PrefixCache], capacity_tokens: int | None) -> None:
        self.replicas = len(caches)
        self.capacity_tokens = capacity_tokens
        self.running = [0] * len(caches)
        self.waiting = [0] * len(caches)
        self.prefill_tokens = [0] * len(caches)
        self.context_tokens = [0] * len(caches)
        self.sent = [0] * len(caches)
        self._caches = caches
        self._missing: dict[str, int] = {}
        self._pieces: Sequence[Piece] = ()
        self._layout = caches[0].lay_out(())

    def held(self, pieces: Sequence[Piece]) -> list[int]:
        """Leading tokens of the prompt that each replica has, or will when its prefills end."""
        layout = self._laid_out(pieces)
        return [cache.lookup_laid_out(layout) for cache in self._caches]

    def submitted(self, live: Live) -> None:
        """The request was sent to `live.replica`."""
        at = live.replica
        missing = live.prompt_tokens - self._caches[at].lookup_laid_out(self._laid_out(live.pieces))
        self._missing[live.request_id] = missing
        self.running[at] += 1
        self.waiting[at] += 1
        self.sent[at] += 1
        self.prefill_tokens[at] += missing
        self.context_tokens[at] += live.prompt_tokens

    def first_token(self, live: Live) -> None:
        """Its prefill is done."""
        self.waiting[live.replica] -= 1
        self.prefill_tokens[live.replica] -= self._missing.pop(live.request_id)

    def ended(self, live: Live) -> None:
        """It holds nothing any more."""
        self.running[live.replica] -= 1
        self.context_tokens[live.replica] -= live.prompt_tokens

    def _laid_out(self, pieces: Sequence[Piece]) -> Layout:
        """Once for all caches, which are alike; and once for the same prompt asked for again."""
        if pieces is not self._pieces:
            self._pieces, self._layout = pieces, self._caches[0].lay_out(pieces)
        return self._layout
