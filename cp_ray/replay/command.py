"""`cp-ray bench reuse` and `bench engine` between the command line and what they call."""

from __future__ import annotations

import argparse
import sys

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay.engine_bench import EngineBenchOptions, EngineRow, bench_engine
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


def run_engine(args: argparse.Namespace) -> int:
    """Run the trace through the engine, print the rows; the exit status."""
    rows = bench_engine(
        EngineBenchOptions(
            engine=args.engine,
            trace=args.trace,
            policies=tuple(name.strip() for name in args.policy.split(",") if name.strip()),
            requests=args.requests,
            concurrency=args.concurrency,
            cache_tokens=args.cache_tokens,
            length_scale=args.length_scale,
            abort_share=args.abort_share,
            model=args.model,
        )
    )
    if args.json:
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
        return 0
    names = EngineRow.__struct_fields__
    width = max(map(len, names))
    for row in rows:
        lines = (f"{name:<{width}} {_shown(getattr(row, name))}" for name in names)
        sys.stdout.write("\n".join(lines) + "\n\n")
    return 0


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def parse_cache_tokens(text: str) -> int | None:
    """Tokens, or None for `inf`."""
    if text == "inf":
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(
        f"--cache-tokens: {text!r} is neither a number of tokens nor 'inf'", param="cache_tokens"
    )
