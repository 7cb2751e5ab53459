"""`dynamo`: NVIDIA Dynamo's KV router, default weights (overlap 1, temperature 0), blocks of 16.

cost = max(prefill under way + prompt - cached, 0) + blocks of running requests and of the prompt.
A block counts once, however many of a replica's requests use it (`router_assume_kv_reuse`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from cp_ray.core.pages import Piece
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.view import FleetView

BLOCK = 16


class Dynamo(OneByOne):
    """By the engines' own events, here without lag."""

    def __init__(self, seed: int, replicas: int) -> None:
        super().__init__(seed)
        self._prefixes: dict[tuple[int, Hashable], int] = {}
        self._used: list[dict[int, int]] = [{} for _ in range(replicas)]
        self._used_blocks = [0] * replicas

    def place(self, live: Live, view: FleetView, _now: float, /) -> int:
        """Least cost."""
        held = view.held(live.pieces)
        path = self._path(live.pieces)
        return self.least(
            [
                max(view.prefill_tokens[at] + live.prompt_tokens - held[at], 0) / BLOCK
                + self._used_blocks[at]
                + sum(blocks for prefix, blocks in path if prefix not in self._used[at])
                for at in range(view.replicas)
            ]
        )

    def placed(self, live: Live, /) -> None:
        """Its blocks are in use."""
        used = self._used[live.replica]
        for prefix, blocks in self._path(live.pieces):
            if prefix not in used:
                self._used_blocks[live.replica] += blocks
            used[prefix] = used.get(prefix, 0) + 1

    def ended(self, live: Live, now: float) -> None:  # noqa: ARG002
        """By one request less."""
        used = self._used[live.replica]
        for prefix, blocks in self._path(live.pieces):
            used[prefix] -= 1
            if not used[prefix]:
                del used[prefix]
                self._used_blocks[live.replica] -= blocks

    def _path(self, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """A number for each prefix of whole pieces, and the blocks that end in its last piece."""
        path, prefix, end = [], 0, 0
        for key, tokens in pieces:
            prefix = self._prefixes.setdefault((prefix, key), len(self._prefixes) + 1)
            path.append((prefix, (end + tokens) // BLOCK - end // BLOCK))
            end += tokens
        return path
