"""`cp-ray bench index|reuse` and `cp-ray trace` between the command line and the functions."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay.ablation import PARTS
from cp_ray.replay.registry import has_arm, is_limit
from cp_ray.replay.reuse import Bench, ReuseOptions, ReuseRow

T = TypeVar("T")


def run_reuse(args: argparse.Namespace) -> int:
    """Replay every combination, print the rows, draw the plot if asked; the exit status."""
    from cp_ray.replay.report import as_json, plot, table

    options = ReuseOptions(
        trace=args.trace,
        policies=_with_arms(args.policy, args.ablate),
        in_flight_sharing=args.in_flight_sharing,
        requests=args.requests,
        series=args.series,
    )
    rows: list[ReuseRow] = []
    bench = Bench()
    for k, cache_tokens, in_flight, conversations in itertools.product(
        listed("k", args.k, number),
        listed("cache-tokens", args.cache_tokens, parse_cache_tokens),
        listed("in-flight", args.in_flight, number),
        listed("conversations", args.conversations, number),
    ):
        rows += bench.run(
            msgspec.structs.replace(
                options,
                k=k,
                cache_tokens=cache_tokens,
                in_flight=in_flight,
                conversations=conversations,
            )
        )
    sys.stdout.write((as_json(rows) if args.json else table(rows)) + "\n")
    if args.plot:
        plot(rows, args.plot)
    return 0


def run_index(args: argparse.Namespace) -> int:
    """Print the costs at every size beside the paper's; the exit status."""
    from cp_ray.replay.index_bench import as_table, bench_index

    sizes = [one for one in listed("n", args.n, number) if one]
    if not sizes:
        raise ConfigError("--n: give a number of stored contexts, 1 or more", param="n")
    figures = bench_index(sizes, args.k, args.seed)
    if args.json:
        one_or_all = figures[0] if len(figures) == 1 else figures
        sys.stdout.write(msgspec.json.encode(one_or_all).decode() + "\n")
    else:
        sys.stdout.write(as_table(figures) + "\n")
    return 0


def run_conversations(args: argparse.Namespace) -> int:
    """Replay every trace with its histories and print the rows; the exit status."""
    from cp_ray.replay.conversation_bench import (
        ConversationOptions,
        ConversationRow,
        bench_conversations,
        table_of,
    )

    rows: list[ConversationRow] = []
    for trace in args.trace:
        rows += bench_conversations(
            ConversationOptions(
                trace=trace,
                policies=tuple(name.strip() for name in args.policy.split(",") if name.strip()),
                side_by_side=args.side_by_side,
                cache_tokens=parse_cache_tokens("cache-tokens", args.cache_tokens),
                history=not args.no_history,
                k=args.k,
            )
        )
    text = msgspec.json.encode(rows).decode() if args.json else table_of(rows)
    sys.stdout.write(text + "\n")
    return 0


def run_import(args: argparse.Namespace) -> int:
    """Write a trace folder; the exit status."""
    from cp_ray.replay.importing import ImportOptions, import_trace

    options = ImportOptions(
        source=args.source,
        kind=args.format,
        output=args.output,
        k=args.k,
        words=args.words,
        overlap=args.overlap,
        tokenizer=args.tokenizer,
        blocks=args.blocks,
    )
    sys.stdout.write(import_trace(options) + "\n")
    return 0


def run_stats(args: argparse.Namespace) -> int:
    """Print one column a trace, draw the plot if asked; the exit status."""
    from cp_ray.replay.stats import as_table, plot_stats, trace_stats
    from cp_ray.replay.trace import read_trace

    stats = [trace_stats(read_trace(path)) for path in args.trace]
    text = msgspec.json.encode(stats).decode() if args.json else as_table(stats)
    sys.stdout.write(text + "\n")
    if args.plot:
        plot_stats(stats, args.plot)
    return 0


def parse_cache_tokens(flag: str, text: str) -> int | None:
    """Tokens, or None for `inf`."""
    if text == "inf":
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(
        f"--{flag}: {text!r} is neither a number of tokens nor 'inf'", param="cache_tokens"
    )


def number(flag: str, text: str) -> int:
    """A whole number."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(f"--{flag}: {text!r} is not a number", param=flag.replace("-", "_"))


def listed(flag: str, text: str | None, parse: Callable[[str, str], T]) -> list[T] | list[None]:
    """Every value of an option that takes several, by commas; [None] where it is not given."""
    if text is None:
        return [None]
    return [parse(flag, part.strip()) for part in text.split(",") if part.strip()]


def _with_arms(policies: str, ablate: str) -> tuple[str, ...]:
    """Each policy, followed by itself without each of the parts that it has."""
    parts = [part.strip() for part in ablate.split(",") if part.strip()]
    for part in parts:
        if part not in PARTS and not is_limit(part):
            raise ConfigError(
                f"--ablate: {part!r} is not one of {', '.join(PARTS)}, topN, moveN", param="ablate"
            )
    names = [name.strip() for name in policies.split(",") if name.strip()]
    return tuple(
        arm
        for name in names
        for arm in (name, *(f"{name}-{part}" for part in parts if has_arm(name, part)))
    )
