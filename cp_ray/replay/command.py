"""`cp-ray bench reuse` between the command line and `bench_reuse`."""

from __future__ import annotations

import argparse
import sys

from cp_ray.errors import ConfigError
from cp_ray.replay.report import as_json, plot, table
from cp_ray.replay.reuse import ReuseOptions, bench_reuse


def run_reuse(args: argparse.Namespace) -> int:
    """Replay, print the rows, draw the plot if one is asked for; the exit status."""
    rows = bench_reuse(
        ReuseOptions(
            trace=args.trace,
            policies=tuple(name.strip() for name in args.policy.split(",") if name.strip()),
            cache_tokens=parse_cache_tokens(args.cache_tokens),
            in_flight=args.in_flight,
            in_flight_sharing=args.in_flight_sharing,
            k=args.k,
            requests=args.requests,
        )
    )
    sys.stdout.write((as_json(rows) if args.json else table(rows)) + "\n")
    if args.plot:
        plot(rows, args.plot)
    return 0


def parse_cache_tokens(text: str) -> int | None:
    """Tokens, or None for `inf`."""
    if text == "inf":
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(
        f"--cache-tokens: {text!r} is neither a number of tokens nor 'inf'", param="cache_tokens"
    )
