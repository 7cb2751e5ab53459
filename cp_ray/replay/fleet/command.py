"""`cp-ray bench fleet` between the command line and the functions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import cast

import msgspec

from cp_ray.errors import ConfigError
from cp_ray.replay.command import number, parse_cache_tokens
from cp_ray.replay.fleet.bench import FleetOptions, FleetRow, bench_fleet
from cp_ray.replay.fleet.cell import Arrivals, Hardware, Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options; several values are given by commas."""
    parser.add_argument("--trace", type=Path, required=True, help="folder or file")
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--cache-tokens", default="100000", help="of each replica")
    parser.add_argument("--load", default="0.8", help="shares of least_loaded's saturation")
    parser.add_argument("--arrivals", choices=("poisson", "bursty", "closed"), default="poisson")
    parser.add_argument("--seed", default="1", help="of arrivals and ties; or several")
    parser.add_argument("--model", choices=("serial", "batching"), default="batching")
    parser.add_argument(
        "--decode-ms", type=float, help="of a step, for each answer that runs (model batching)"
    )
    parser.add_argument("--policy", default="least_loaded,est_ttft,lmetric,cp_ray")
    parser.add_argument(
        "--order", default="none", help="of rivals: none, paper; ours orders itself"
    )
    parser.add_argument("--ablate", default="", help="order,schedule,joint,replication")
    parser.add_argument("--requests", type=int, help="only the first N")
    parser.add_argument("--repeat", type=int, default=1, help="the trace so many times over")
    parser.add_argument("--warm", type=int, default=0, help="first times that are not counted")
    parser.add_argument("--saturation", type=float, help="requests/s of load 1.0; else it is found")
    parser.add_argument(
        "--grow-from", type=int, help="cp_ray on a fleet that grows from so many replicas mid-trace"
    )
    parser.add_argument("--no-overlap", action="store_true", help="no two requests share a block")
    parser.add_argument("--no-answers", action="store_true", help="one token each: prefill alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path)


def run_fleet(args: argparse.Namespace) -> int:
    """Play the cells, print the rows, draw the plot if asked; the exit status."""
    from cp_ray.replay.fleet.report import as_json, plot, table

    if args.grow_from is not None:
        return _run_growth(args)
    rows: list[FleetRow] = []
    for row in bench_fleet(options_of(args)):
        rows.append(row)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{len(rows)} cells, last {row.policy} at {row.load:g}   ")
    sys.stdout.write((as_json(rows) if args.json else table(rows)) + "\n")
    if args.plot:
        plot(rows, args.plot)
    return 0


def _run_growth(args: argparse.Namespace) -> int:
    from cp_ray.replay.fleet.growth import bench_growth
    from cp_ray.replay.fleet.growth_report import table
    from cp_ray.replay.fleet.report import as_json

    if args.plot:
        raise ConfigError("--plot: there is none with --grow-from", param="plot")
    rows = list(bench_growth(options_of(args), args.grow_from))
    sys.stdout.write((as_json(rows) if args.json else table(rows)) + "\n")
    return 0


def options_of(args: argparse.Namespace) -> FleetOptions:
    """Raises ConfigError naming the option to mend."""
    cache_tokens = parse_cache_tokens("cache-tokens", args.cache_tokens)
    if cache_tokens is None or cache_tokens < 1:
        raise ConfigError("--cache-tokens: give the tokens that one replica's cache holds")
    if args.replicas < 1:
        raise ConfigError(f"--replicas: {args.replicas} is less than 1", param="replicas")
    hardware = Hardware(args.replicas, cache_tokens, cast("Model", args.model))
    if args.decode_ms is not None:
        if args.decode_ms < 0 or args.model != "batching":
            raise ConfigError("--decode-ms: 0 or more, and for --model batching", param="decode_ms")
        hardware = msgspec.structs.replace(hardware, decode_s=args.decode_ms / 1000)
    if args.repeat < 1:
        raise ConfigError(f"--repeat: {args.repeat} is less than 1", param="repeat")
    if not 0 <= args.warm < args.repeat:
        raise ConfigError("--warm: 0 or more, and less than --repeat", param="warm")
    orders = _listed(args.order)
    unknown = [order for order in orders if order not in ("none", "paper", "ours")]
    if unknown:
        raise ConfigError(f"--order: {unknown[0]!r} is not one of none, paper, ours", param="order")
    try:
        loads = tuple(float(part) for part in _listed(args.load))
    except ValueError as error:
        raise ConfigError(f"--load: {error}", param="load") from None
    if not loads or min(loads) <= 0:
        raise ConfigError("--load: give shares above 0, such as 0.8", param="load")
    return FleetOptions(
        trace=args.trace,
        hardware=hardware,
        loads=loads,
        arrivals=cast("Arrivals", args.arrivals),
        seeds=tuple(number("seed", part) for part in _listed(args.seed)),
        policies=_listed(args.policy),
        orders=tuple(order for order in orders if order != "ours"),
        ablate=_listed(args.ablate),
        requests=args.requests,
        repeat=args.repeat,
        warm=args.warm,
        saturation_rps=args.saturation,
        overlap=not args.no_overlap,
        answers=not args.no_answers,
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
