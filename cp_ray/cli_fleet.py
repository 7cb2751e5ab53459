"""`cp-ray top`, `explain` and `replay`: what a running or a recorded fleet does."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any


def add_fleet_commands(commands: Any) -> None:
    """Add them to the subparsers of `cp-ray`."""
    _top(commands.add_parser("top", help="the fleet, live, in this terminal"))
    _explain(commands.add_parser("explain", help="what became of one request, step by step"))
    _replay(commands.add_parser("replay", help="recorded traffic against other configurations"))


def _at(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--json", action="store_true")


def _key(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _top(parser: argparse.ArgumentParser) -> None:
    _at(parser)
    parser.add_argument("--once", action="store_true", help="print once and end")

    def run(args: argparse.Namespace) -> int:
        from cp_ray.top import run_top

        key = _key("CP_RAY_OPERATOR_KEY")
        return run_top(args.url, key, once=args.once, as_json=args.json)

    parser.set_defaults(run=run)


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request_id", help="the `id` of an answer")
    _at(parser)

    def run(args: argparse.Namespace) -> int:
        from cp_ray.top import run_explain

        key = _key("CP_RAY_OPERATOR_KEY", "OPENAI_API_KEY")
        return run_explain(args.request_id, args.url, key, as_json=args.json)

    parser.set_defaults(run=run)


def _replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", type=Path, help="folder that the setting `record` wrote")
    parser.add_argument("--policy", default="none,paper,online", help="as in `bench reuse`")
    parser.add_argument("--cache-tokens", default="inf", help="of one cache: N or inf")
    parser.add_argument("--json", action="store_true")

    def run(args: argparse.Namespace) -> int:
        from cp_ray.replay.recorded import run_replay

        return run_replay(args)

    parser.set_defaults(run=run)
