"""`cp-ray`: thin; each command calls one function elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cp_ray.cli_fleet import add_fleet_commands
from cp_ray.errors import CpRayError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors of our own are one line on stderr and exit status 2."""
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
    except CpRayError as error:
        print(f"cp-ray: {error.message}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cp-ray", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _serve(commands.add_parser("serve", help="start the app on this machine's Ray"))
    _run_batch(commands.add_parser("run-batch", help="offline mode: plan or run a file"))
    _coa(commands.add_parser("coa", help="Chain-of-Agents over one long document"))
    add_fleet_commands(commands)
    _eval(commands.add_parser("eval", help="do answers change? each switch alone, and all"))
    _doctor(commands.add_parser("doctor", help="what is missing here, and what to do about it"))
    trace = commands.add_parser("trace", help="workloads").add_subparsers(required=True)
    _trace_import(trace.add_parser("import", help="public files to a trace"))
    _trace_stats(trace.add_parser("stats", help="how much a trace repeats (paper figure 3)"))
    bench = commands.add_parser("bench", help="measure").add_subparsers(required=True)
    _bench_index(bench.add_parser("index", help="cost of the index per request"))
    _bench_reuse(bench.add_parser("reuse", help="hit ratio of policies on a trace"))
    _bench_fleet(bench.add_parser("fleet", help="routing policies, many replicas, virtual time"))
    _bench_conversations(
        bench.add_parser("conversations", help="reuse across turns, beside its ceilings")
    )
    _bench_engine(bench.add_parser("engine", help="a trace through a real engine"))
    _bench_serve(bench.add_parser("serve", help="the whole application under steady load"))
    return parser


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="see cp_ray/config.py; or one FILE.yaml"
    )

    def run(args: argparse.Namespace) -> int:
        from cp_ray.preflight import check_before_serving

        arguments = check_before_serving(args.settings)
        if arguments is None:
            return 2
        serve = str(Path(sys.executable).with_name("serve"))
        return os.execv(serve, [serve, "run", *arguments])  # noqa: S606 - becomes `serve run`

    parser.set_defaults(run=run)


def _run_batch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--input", type=Path, required=True, help="JSONL of request bodies")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSONL")
    parser.add_argument("--plan-only", action="store_true", help="write the order of sending")
    parser.add_argument("--index", type=Path, help="write an offline index for index=FILE")
    parser.add_argument("--tenant", default="default", help="whose requests the index is for")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where to send")
    parser.add_argument("--concurrency", type=int, default=8)

    def run(args: argparse.Namespace) -> int:
        from cp_ray.batch import plan_batch, send_batch, write_plan

        planned = plan_batch(args.input, args.index, args.tenant)
        if args.plan_only:
            return write_plan(planned, args.output)
        key = os.environ.get("OPENAI_API_KEY", "none")
        return send_batch(planned, args.output, args.url, args.concurrency, key)

    parser.set_defaults(run=run)


def _coa(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("document", type=Path, help="a text file")
    parser.add_argument("question", nargs="+")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--json", action="store_true")

    def run(args: argparse.Namespace) -> int:
        from cp_ray.agents.command import run_chain

        return run_chain(
            args.document, args.question, args.workers, args.url, args.model, as_json=args.json
        )

    parser.set_defaults(run=run)


def _eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("questions", type=Path, help="JSON Lines, or a folder (docs/quality.md)")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="any OpenAI endpoint")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--arms", help="by commas; default: all of docs/quality.md")
    parser.add_argument("--requests", type=int, help="only the first N")
    parser.add_argument("--documents", type=int, help="only the best N of each question")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--json", action="store_true")

    def run(args: argparse.Namespace) -> int:
        from cp_ray.evaluation.arms import ARMS
        from cp_ray.evaluation.run import EvalOptions, run_eval

        options = EvalOptions(
            questions=args.questions,
            url=args.url,
            model=args.model,
            arms=tuple(args.arms.split(",")) if args.arms else tuple(ARMS),
            most=args.requests,
            documents=args.documents,
            max_tokens=args.max_tokens,
            concurrency=args.concurrency,
        )
        return run_eval(options, as_json=args.json)

    parser.set_defaults(run=run)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument(
        "--config",
        type=Path,
        help="check one file only: Serve config, `ray up`, RayService, compose",
    )
    parser.add_argument("--json", action="store_true")

    def run(args: argparse.Namespace) -> int:
        from cp_ray.cluster_files import check_file
        from cp_ray.config import parse_settings
        from cp_ray.doctor import diagnose, show

        if args.config:
            print(check_file(args.config))
            return 0
        return show(diagnose(parse_settings(args.settings)), as_json=args.json)

    parser.set_defaults(run=run)


def _bench_serve(parser: argparse.ArgumentParser) -> None:
    from cp_ray.demo.serve_command import add_arguments, run_serve_command

    add_arguments(parser)
    parser.set_defaults(run=run_serve_command)


def _bench_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", default="2000", help="stored contexts; or several, by commas")
    parser.add_argument("--k", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")

    def run(args: argparse.Namespace) -> int:
        from cp_ray.replay.command import run_index

        return run_index(args)

    parser.set_defaults(run=run)


def _bench_reuse(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, required=True, help="folder or file")
    parser.add_argument("--policy", default="none,frequency,paper", help="names, or plan:FILE")
    parser.add_argument(
        "--ablate",
        default="",
        help="also without these: order,schedule,leaders; or under limits: topN,moveN",
    )
    parser.add_argument("--cache-tokens", default="inf", help="N or inf; or several, by commas")
    parser.add_argument("--in-flight", default="1", help="requests together; or several")
    parser.add_argument("--in-flight-sharing", choices=("step", "finished"), default="step")
    parser.add_argument("--conversations", help="replay so many side by side; or several")
    parser.add_argument("--k", help="only the first K blocks of each context; or several")
    parser.add_argument("--requests", type=int, help="only the first N")
    parser.add_argument("--series", action="store_true", help="the hit ratio over time as well")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path)

    def run(args: argparse.Namespace) -> int:
        from cp_ray.replay.command import run_reuse

        return run_reuse(args)

    parser.set_defaults(run=run)


def _bench_fleet(parser: argparse.ArgumentParser) -> None:
    from cp_ray.replay.fleet.command import add_arguments, run_fleet

    add_arguments(parser)
    parser.set_defaults(run=run_fleet)


def _bench_conversations(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, required=True, nargs="+", help="folders or files")
    parser.add_argument("--policy", default="none,online", help="names, by commas")
    parser.add_argument("--side-by-side", type=int, default=8, help="conversations under way")
    parser.add_argument("--cache-tokens", default="inf", help="N or inf")
    parser.add_argument("--k", type=int, help="only the first K blocks of each context")
    parser.add_argument("--no-history", action="store_true", help="a prompt of its own each turn")
    parser.add_argument("--json", action="store_true")

    def run(args: argparse.Namespace) -> int:
        from cp_ray.replay.command import run_conversations

        return run_conversations(args)

    parser.set_defaults(run=run)


def _bench_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=("vllm", "sglang", "simulated"), default="vllm")
    parser.add_argument("--trace", type=Path, required=True, help="folder or file")
    parser.add_argument("--policy", default="none,online", help="none, paper, online")
    parser.add_argument("--requests", type=int, default=200, help="only the first N")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--cache-tokens", type=int, default=8192)
    parser.add_argument("--length-scale", type=float, default=1.0, help="factor on block tokens")
    parser.add_argument("--abort-share", type=float, default=0.0, help="0 to 1")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--at-least", type=float, default=0.0, help="predicted, or fail: 0 to 1")
    parser.add_argument("--json", action="store_true")

    def run(args: argparse.Namespace) -> int:
        from cp_ray.replay.engine_command import run_engine

        return run_engine(args)

    parser.set_defaults(run=run)


def _trace_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="file or folder as published")
    parser.add_argument("--format", required=True, help="docs/traces.md lists them")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--k", type=int, default=15, help="blocks to retrieve per question")
    parser.add_argument("--words", type=int, help="words of a block, where texts are cut")
    parser.add_argument("--overlap", type=int, help="words that neighbours share")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; else 4 bytes a token")
    parser.add_argument("--blocks", type=Path, help="blocks.tsv of another folder (format cp_ray)")

    def run(args: argparse.Namespace) -> int:
        from cp_ray.replay.command import run_import

        return run_import(args)

    parser.set_defaults(run=run)


def _trace_stats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, nargs="+", help="folders or files")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path)

    def run(args: argparse.Namespace) -> int:
        from cp_ray.replay.command import run_stats

        return run_stats(args)

    parser.set_defaults(run=run)


if __name__ == "__main__":
    sys.exit(main())
