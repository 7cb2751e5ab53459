"""python -m benchmarks.gpu budget|run|table|curve

budget  what fits one slot of device time, by estimates
run     measure as much of it, print the table, write JSON; go on where the last run ended
table   print what was measured so far
curve   one model's prefill curve, as a data file of the simulated engine
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from benchmarks.gpu.budget import Fixed
from benchmarks.gpu.cells import AGENDAS
from benchmarks.gpu.driver import ON_GPU, RunOptions, budget_of, budget_text, report, run
from benchmarks.gpu.workload import Kit
from cp_ray.errors import ConfigError


def main(argv: list[str] | None = None) -> int:
    """The exit status."""
    args = _parser().parse_args(argv)
    try:
        return _COMMANDS[args.command](args)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("budget", "run", "table", "shape"):
        command = commands.add_parser(name)
        command.add_argument("--out", type=Path, default=Path("out/gpu"), help="results, kept")
        if name == "shape":
            command.add_argument("--shape", choices=tuple(AGENDAS), required=True)
            command.add_argument("--setup", type=int, default=0)
        else:
            command.add_argument("--shapes", default=",".join(ON_GPU))
        if name != "table":
            command.add_argument("--kit", type=Path, default=Path(".gpu"))
            command.add_argument("--seconds", type=float, default=900.0)
        if name in ("run", "shape"):
            command.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    curve = commands.add_parser("curve")
    curve.add_argument("--model", default="smollm2", help="as the setting `model`")
    curve.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    curve.add_argument("--longest", type=int, default=4096, help="tokens")
    curve.add_argument("--repeats", type=int, default=3)
    curve.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    curve.add_argument("--out", type=Path, required=True, help="the data file")
    return parser


def _shapes(args: argparse.Namespace) -> tuple[str, ...]:
    names = tuple(name.strip() for name in args.shapes.split(",") if name.strip())
    for name in names:
        if name not in AGENDAS:
            raise ConfigError(f"--shapes: {name!r} is not one of {', '.join(AGENDAS)}")
    return names


def _budget(args: argparse.Namespace) -> int:
    planned = budget_of(Kit(args.kit), args.out, _shapes(args), Fixed(), args.seconds)
    print(budget_text(planned))
    return 0


def _run(args: argparse.Namespace) -> int:
    options = RunOptions(args.kit, args.out, _shapes(args), args.device, args.seconds)
    return run(options, lambda text: print(text, flush=True))


def _table(args: argparse.Namespace) -> int:
    print(report(args.out, _shapes(args)))
    return 0


def _shape(args: argparse.Namespace) -> NoReturn:
    from benchmarks.gpu.shape_run import ShapeOptions, run_shape

    options = ShapeOptions(args.kit, args.out, args.shape, args.device, args.seconds, args.setup)
    run_shape(options, lambda text: print(text, flush=True))
    # All is saved; the engine's own tear-down can wait for ever on a loaded machine.
    os._exit(0)


def _curve(args: argparse.Namespace) -> int:
    from benchmarks.gpu.model_curve import measure_model

    said = measure_model(
        args.model,
        args.device,
        longest=args.longest,
        repeats=args.repeats,
        clock=args.clock,
        out=args.out,
    )
    print(said)
    return 0


_COMMANDS = {
    "budget": _budget,
    "run": _run,
    "table": _table,
    "shape": _shape,
    "curve": _curve,
}

if __name__ == "__main__":
    sys.exit(main())
