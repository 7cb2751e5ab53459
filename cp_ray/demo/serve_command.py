"""`cp-ray bench serve`: the whole application under load. Arguments, and what is printed."""

from __future__ import annotations

import argparse
import contextlib


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of both measurements."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--soak", action="store_true", help="does anything grow?")
    which.add_argument(
        "--engine", choices=("simulated",), help="what is added to a bare Serve application"
    )
    soak = parser.add_argument_group("with --soak")
    soak.add_argument("--seconds", type=float, default=600.0, help="of measured load")
    soak.add_argument("--warm", type=float, default=240.0, help="seconds to fill up, at most")
    soak.add_argument("--settle", type=float, default=420.0, help="of load before it is measured")
    soak.add_argument("--replicas", type=int, default=2, help="simulated engines")
    soak.add_argument("--concurrency", type=int, default=16, help="clients that find the limit")
    engine = parser.add_argument_group("with --engine")
    engine.add_argument("--sizes", default="2,60", help="of bodies, KB: 2, 60 or both")
    engine.add_argument("--pairs", type=int, default=8, help="of blocks of load, for each body")
    engine.add_argument("--block", type=float, default=8.0, help="seconds of load in a block")
    engine.add_argument("--streams", type=int, default=4000, help="open at a time; 0 = none")
    engine.add_argument(
        "--data-plane",
        choices=("ingress", "direct"),
        default="ingress",
        help="how answers travel; direct: HAProxy stands before both applications",
    )
    parser.add_argument("--load", type=float, help="share of the limit; 0.8 or 0.5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")


def run_serve_command(args: argparse.Namespace) -> int:
    """Run what was asked for; 1 when a limit is missed."""
    if args.soak:
        from cp_ray.demo.soak import SoakOptions, run_soak, show

        options = SoakOptions(
            args.seconds,
            args.replicas,
            args.concurrency,
            args.load or 0.8,
            args.seed,
            args.warm,
            args.settle,
        )
        return show(run_soak(options), as_json=args.json)
    from cp_ray.demo.own_serve import direct_environment

    direct = args.data_plane == "direct"
    with direct_environment() if direct else contextlib.nullcontext():
        return _compare(args)


def _compare(args: argparse.Namespace) -> int:
    from cp_ray.demo.serve_bench import ServeOptions, run_serve
    from cp_ray.demo.serve_report import show_serve

    wanted = ServeOptions(
        tuple(int(size) for size in args.sizes.split(",")),
        args.pairs,
        args.block,
        args.load or 0.5,
        args.streams,
        args.seed,
        args.data_plane,
    )
    return show_serve(run_serve(wanted), as_json=args.json)
