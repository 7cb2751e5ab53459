"""`cp-ray bench engine` between the command line and the bench."""

from __future__ import annotations

import argparse
import sys

import msgspec

from cp_ray.replay.engine_bench import EngineBenchOptions, EngineRow, bench_engine


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
