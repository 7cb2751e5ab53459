"""`make demo`: two workloads, three ways, one table. Exit 0 only if every request was answered."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import openai
from rich.console import Console
from tqdm import tqdm

from cp_ray.config import AppConfig
from cp_ray.demo.arms import Running, start, stop
from cp_ray.demo.engines import ARMS, engine_config, prepare
from cp_ray.demo.measure import Record, run_chain, run_rag, warm_up
from cp_ray.demo.table import Row, ratios, show, summarize
from cp_ray.demo.workloads import Workloads, own_workloads, python_workloads
from cp_ray.errors import ConfigError, CpRayError

RAG = "RAG"
CHAIN = "Chain-of-Agents"
OUT = Path("out")
REQUEST_TIMEOUT_S = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; errors of our own are one line on stderr and exit status 2."""
    args = _parser().parse_args(argv)
    try:
        return _demo(args, Console())
    except CpRayError as error:
        Console(stderr=True).print(f"demo: {error.message}", highlight=False, markup=False)
        return 2


def _demo(args: argparse.Namespace, console: Console) -> int:
    started = time.monotonic()
    workloads = _workloads(args)
    prepare(args.engine, args.model)
    rows: list[Row] = []
    failures: list[str] = []
    # An arm stops while the next one starts; nothing is measured before that one is ready.
    with ThreadPoolExecutor(1) as stopping:
        for arm in args.arms:
            config = engine_config(args.engine, args.model, args.replicas, arm)
            console.print(f"[bold]{arm}[/bold]: {ARMS[arm]}", highlight=False)
            app = start(arm, config, OUT)
            try:
                driven = asyncio.run(_drive(app, config, workloads, args.users))
            finally:
                stopping.submit(stop, app)
            for name, records, wall_s in driven:
                rows.append(summarize(name, arm, records, wall_s))
                failures += [f"{arm} {r.name}: {r.error}" for r in records if r.error is not None]
    show(rows, console, caption=_caption(args, time.monotonic() - started))
    for failure in failures:
        console.print(f"FAILED {failure}", highlight=False, markup=False)
    _write(args, rows, failures)
    return 1 if failures else 0


async def _drive(
    app: Running, config: AppConfig, workloads: Workloads, users: int
) -> list[tuple[str, list[Record], float]]:
    """Run both workloads, one after the other; (name, records, seconds) of each."""
    model = config.public_model_name
    results: list[tuple[str, list[Record], float]] = []
    async with openai.AsyncOpenAI(
        base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S
    ) as client:
        await warm_up(client, model, config.replicas)
        start = time.monotonic()
        with tqdm(total=workloads.rag_requests, desc=f"{config.reuse}: {RAG}", unit="req") as bar:
            records = await run_rag(
                client, model, workloads.dialogues, users=users, seen=lambda _: bar.update()
            )
        results.append((RAG, records, time.monotonic() - start))
        start = time.monotonic()
        total = workloads.chain_requests
        with tqdm(total=total, desc=f"{config.reuse}: {CHAIN}", unit="req") as bar:
            records = await run_chain(client, model, workloads.chain, seen=lambda _: bar.update())
        results.append((CHAIN, records, time.monotonic() - start))
    return results


def _workloads(args: argparse.Namespace) -> Workloads:
    if (args.documents is None) != (args.questions is None):
        raise ConfigError("--documents DIR and --questions FILE go together: give both, or none")
    if args.documents is None:
        workloads = python_workloads(args.seed)
    else:
        workloads = own_workloads(args.documents, args.questions, args.seed)
    return workloads.shortened() if args.quick else workloads


def _caption(args: argparse.Namespace, took_s: float) -> str:
    engine = "real vLLM" if args.engine == "vllm" else "simulated engine: times are modelled"
    return (
        f"{args.replicas} replicas, {args.model}, {engine}; {args.users} users; tokens by the "
        f"engine's own count. The whole demo took {took_s / 60:.1f} min."
    )


def _write(args: argparse.Namespace, rows: Sequence[Row], failures: Sequence[str]) -> None:
    args.json.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "engine": args.engine,
        "model": args.model,
        "replicas": args.replicas,
        "users": args.users,
        "seed": args.seed,
        "rows": msgspec.to_builtins(rows),
        "ratios": msgspec.to_builtins(ratios(rows)),
        "failures": list(failures),
    }
    # A mean of nothing is null here: NaN is no JSON.
    args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def _arms(text: str) -> list[str]:
    arms = [arm.strip() for arm in text.split(",") if arm.strip()]
    if not arms or not set(arms) <= set(ARMS):
        raise argparse.ArgumentTypeError(f"choose from {','.join(ARMS)}, separated by commas")
    return arms


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number, 1 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cp_ray.demo", description=__doc__)
    parser.add_argument("--engine", choices=("vllm", "simulated"), default="vllm")
    parser.add_argument("--model", default="smollm2", help="as the setting model=")
    parser.add_argument("--replicas", type=_positive, default=2)
    parser.add_argument("--users", type=_positive, default=6, help="who ask at the same time")
    parser.add_argument("--documents", type=Path, metavar="DIR", help="your own .txt and .md")
    parser.add_argument(
        "--questions", type=Path, metavar="FILE", help="one a line, or JSON with conversations"
    )
    parser.add_argument("--arms", type=_arms, default=list(ARMS), help=f"of {','.join(ARMS)}")
    parser.add_argument("--quick", action="store_true", help="a quarter of the questions")
    parser.add_argument("--json", type=Path, default=OUT / "demo.json", metavar="FILE")
    parser.add_argument("--seed", type=int, default=0, help="order in which the users come")
    return parser


if __name__ == "__main__":
    sys.exit(main())
