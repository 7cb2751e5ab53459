"""A recording of the traffic as a trace: ids and lengths, never texts (`cp-ray replay`).

Ids are digests under a random salt that is not kept, so that nobody who guesses a text can find
out by the recording whether it was sent.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cp_ray.core.story import Story
from cp_ray.errors import ConfigError

MOST_REQUESTS = 1_000_000
"""About 700 MB at 15 blocks; then it ends."""
_log = logging.getLogger("ray.serve")


class Recording:
    """One trace folder below `folder`, named by the time of its start. Raises ConfigError."""

    def __init__(self, folder: Path) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
        self.folder = folder / f"{now}-{secrets.token_hex(2)}"
        try:
            self.folder.mkdir(parents=True)
            self._trace = (self.folder / "trace.jsonl").open("ab", buffering=0)
            self._blocks = (self.folder / "blocks.tsv").open("ab", buffering=0)
            self._blocks.write(b"block_id\ttokens\n")
        except OSError as error:
            raise ConfigError(f"record: cannot write there: {error}", param="record") from error
        self._salt = secrets.token_bytes(16)
        self._known: set[str] = set()
        self._written = 0

    def write(self, stories: Sequence[Story]) -> None:
        """Append what was answered; a full disk ends the recording, nothing else."""
        answered = [story for story in stories if story.outcome != "failed"]
        room = MOST_REQUESTS - self._written
        if not answered or room <= 0:
            return
        lines = [self._line(story) for story in answered[:room]]
        try:
            self._trace.write(b"".join(lines))
        except OSError as error:
            _log.warning("The recording ends: %s", error)
            self._written = MOST_REQUESTS
            return
        self._written += len(lines)

    def _line(self, story: Story) -> bytes:
        plan = story.plan
        names = [self._name(block) for block in plan.context]
        fresh = []
        for name, tokens in zip(names, plan.block_tokens, strict=True):
            if name not in self._known:
                self._known.add(name)
                fresh.append(f"{name}\t{tokens}\n")
        if fresh:
            self._blocks.write("".join(fresh).encode())
        line = {
            "request_id": str(story.request_id),
            "at": round(story.at, 3),
            "context": names,
            "session": self._name(plan.conversation) if plan.conversation else "",
            "question_tokens": plan.tail_tokens,
            "answer_tokens": story.output_tokens,
            # Whatever this application did: a first turn's blocks could stand in any order.
            "movable": plan.predecessor is None,
            "head": self._name(plan.head),
            "head_tokens": plan.head_tokens,
            "cached_tokens": story.cached_tokens,
            "predicted_tokens": story.step.reused_tokens if story.step is not None else 0,
            "replica": story.replica,
            "reason": story.reason,
            "ttft_s": round(story.ttft_s, 4),
        }
        return msgspec.json.encode(line) + b"\n"

    def _name(self, identity: str) -> str:
        digest = hashlib.blake2b(identity.encode(), key=self._salt, digest_size=8)
        return digest.hexdigest()
