"""`cp-ray replay`: what other configurations would have saved on recorded traffic.

A recording is what an application with the setting `record` wrote: ids and lengths, no texts. It
is replayed into one cache per policy, so it answers for order and cache size, not for the load of
a fleet.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay.command import parse_cache_tokens
from cp_ray.replay.reuse import Bench, ReuseOptions
from cp_ray.replay.trace import block_lengths, numbered_lines, trace_file


class _Line(msgspec.Struct):
    context: list[str]
    cached_tokens: int
    head_tokens: int


class Outcome(msgspec.Struct, frozen=True):
    """One row. hit_ratio: of block tokens. saved_tokens: prefill less than was done really."""

    configuration: str
    cache_tokens: int | None
    hit_ratio: float
    saved_tokens: int


def replay(folder: Path, policies: tuple[str, ...], cache_tokens: int | None) -> list[Outcome]:
    """The recording as it went, then each policy. Raises ConfigError."""
    file = trace_file(folder)
    lengths = block_lengths(file.parent)
    blocks = cached = 0
    for number, text in numbered_lines(file):
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{file}, line {number}: {error}", param="recording") from error
        own = sum(lengths[block] for block in line.context)
        blocks += own
        cached += min(own, max(0, line.cached_tokens - line.head_tokens))
    rows = [Outcome("as recorded", None, cached / blocks if blocks else 0.0, 0)]
    options = ReuseOptions(trace=folder, policies=policies, cache_tokens=cache_tokens)
    for row in Bench().run(options):
        saved = round(row.hit_ratio * blocks) - cached
        rows.append(Outcome(row.policy, cache_tokens, row.hit_ratio, saved))
    return rows


def run_replay(args: argparse.Namespace) -> int:
    """Print the rows; the exit status."""
    cache_tokens = parse_cache_tokens("cache-tokens", args.cache_tokens)
    rows = replay(args.recording, tuple(args.policy.split(",")), cache_tokens)
    if args.json:
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
        return 0
    sys.stdout.write(f"{'configuration':<16} {'hit ratio':>9} {'prefill saved':>14}\n")
    for row in rows:
        saved = f"{row.saved_tokens:+,}" if row is not rows[0] else ""
        sys.stdout.write(f"{row.configuration:<16} {row.hit_ratio:>9.1%} {saved:>14}\n")
    return 0
