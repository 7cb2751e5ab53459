"""`cp-ray bench engine` between the command line and the bench."""

from __future__ import annotations

import argparse
import sys

import msgspec

from cp_ray.replay.engine_bench import EngineBenchOptions, EngineRow, bench_engine


def run_engine(args: argparse.Namespace) -> int:
    """Run the trace through the engine, print the rows; the exit status.

    1 when fewer of a policy's audited answers than `at_least` were predicted within a block.
    """
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
    shares = [row.predicted_within_one_block if row.audited else 0.0 for row in rows]
    failed = min(shares, default=0.0) < args.at_least
    if args.json:
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
        return int(failed)
    names = EngineRow.__struct_fields__
    width = max(map(len, names))
    for row in rows:
        lines = (f"{name:<{width}} {_shown(getattr(row, name))}" for name in names)
        sys.stdout.write("\n".join(lines) + "\n\n")
    return int(failed)


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
