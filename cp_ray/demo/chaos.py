"""`make demo-chaos`: the demo's load while replica, index and Redis are killed at random moments.

The verdict comes from the client's own log. A stream may be cut only where a replica was killed
while it ran, and after its first token; the client then sends it again, as OpenAI clients do on
a broken connection. Whatever has not started, and whatever is not streamed, must be answered
through the router's own retry. Exit 0 only if every request was answered, once, and everything
that was killed came back.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import openai
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from cp_ray.agents.chat import Answer, ChatFailed, chat
from cp_ray.demo.arms import Running, running
from cp_ray.demo.engines import engine_config, prepare
from cp_ray.demo.kills import TARGETS, Kill, kill_one
from cp_ray.demo.measure import Record, run_rag, warm_up
from cp_ray.demo.verdict import Attempt, Verdict, judge
from cp_ray.demo.workloads import Dialogue, Turn, python_workloads
from cp_ray.errors import CpRayError
from cp_ray.retrieval.bm25 import Document

OUT = Path("out")
ATTEMPTS = 4
RECOVERY_S = 240.0
REQUEST_TIMEOUT_S = 300.0


class Log:
    """What the client saw: every attempt, in the order in which they ended."""

    def __init__(self) -> None:
        self._zero = time.monotonic()
        self._numbers = itertools.count()
        self._first_answer: dict[str, float] = {}
        self.attempts: list[Attempt] = []

    def clock(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._zero

    def new_replica_since(self, at_s: float) -> bool:
        """Whether a replica that never answered before `at_s` has answered since."""
        return any(first_s > at_s for first_s in self._first_answer.values())

    async def ask(self, client: openai.AsyncOpenAI, **request: Any) -> Answer:
        """Send until a whole answer came, at most ATTEMPTS times; every second is not streamed."""
        streamed = next(self._numbers) % 2 == 0
        for last in (*[False] * (ATTEMPTS - 1), True):
            from_s = self.clock()
            try:
                answer = await chat(client, stream=streamed, **request)
            except ChatFailed as error:
                self._keep(streamed, from_s, started=error.started, error=error.message)
                if last:
                    raise
            else:
                self._keep(streamed, from_s, started=True, error=None)
                if answer.replica is not None:
                    self._first_answer.setdefault(answer.replica, self.clock())
                return answer
        raise AssertionError  # the last attempt returned or raised

    def _keep(self, streamed: bool, from_s: float, *, started: bool, error: str | None) -> None:
        self.attempts.append(Attempt(streamed, from_s, self.clock(), started, error))


def main(argv: Sequence[str] | None = None) -> int:
    """Run once; errors of our own are one line on stderr and exit status 2."""
    parser = argparse.ArgumentParser(prog="python -m cp_ray.demo.chaos", description=__doc__)
    parser.add_argument("--engine", choices=("vllm", "simulated"), default="simulated")
    parser.add_argument("--model", default="smollm2", help="as the setting model=")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--users", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=1, help="kills of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of moments, order and victims")
    args = parser.parse_args(argv)
    console = Console()
    try:
        prepare(args.engine, args.model)
        config = engine_config(args.engine, args.model, args.replicas, "full")
        with running(f"chaos-{args.engine}", config, OUT) as app:
            log, records, kills = asyncio.run(_load_and_kill(app, config.public_model_name, args))
    except CpRayError as error:
        Console(stderr=True).print(f"demo-chaos: {error.message}", highlight=False, markup=False)
        return 2
    verdict = judge(records, log.attempts, kills)
    _show(verdict, kills, console)
    return 1 if verdict.faults else 0


async def _load_and_kill(
    app: Running, model: str, args: argparse.Namespace
) -> tuple[Log, list[Record], list[Kill]]:
    async with openai.AsyncOpenAI(
        base_url=f"{app.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=REQUEST_TIMEOUT_S,
        default_headers={"x-cp-ray-explain": "1"},
    ) as client:
        await warm_up(client, model, args.replicas)
        log, over = Log(), asyncio.Event()
        killer = asyncio.create_task(_kill_all(app, args, log, over))
        with tqdm(desc=f"{args.engine}: requests", unit="req") as bar:
            records = await run_rag(
                client,
                model,
                _endless(args.seed, over),
                users=args.users,
                seen=lambda _: bar.update(),
                ask=log.ask,
            )
        return log, records, await killer


async def _kill_all(
    app: Running, args: argparse.Namespace, log: Log, over: asyncio.Event
) -> list[Kill]:
    """Kill each kind once a round, one after the other; then let the load run on a little."""
    rng = random.Random(args.seed)
    kills: list[Kill] = []
    try:
        for _ in range(args.rounds):
            for target in rng.sample(sorted(TARGETS), len(TARGETS)):
                await asyncio.sleep(rng.uniform(2, 6))
                kills.append(await kill_one(app, target, rng, log, RECOVERY_S))
        await asyncio.sleep(5)
    finally:
        over.set()
    return kills


def _endless(seed: int, over: asyncio.Event) -> Iterator[Dialogue]:
    """The demo's conversations again and again, each time as new ones, until `over` is set.

    Their documents are new ones too: what one replica holds already would all go there, and a
    replica that came back would, rightly, be asked nothing.
    """
    dialogues = python_workloads(seed).dialogues
    for edition in itertools.count():
        for dialogue in dialogues:
            if over.is_set():
                return
            turns = tuple(_edition(turn, edition) for turn in dialogue.turns)
            yield Dialogue(f"{edition}-{dialogue.id}", turns)


def _edition(turn: Turn, number: int) -> Turn:
    documents: list[Document] = [
        {**document, "text": f"Edition {number}. {document['text']}"} for document in turn.documents
    ]
    return msgspec.structs.replace(turn, documents=tuple(documents))


def _show(verdict: Verdict, kills: Sequence[Kill], console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("killed", "pid", "at", "back after"):
        table.add_column(name, justify="left" if name == "killed" else "right")
    for kill in kills:
        back = "never" if kill.recovered_s is None else f"{kill.recovered_s:.1f} s"
        table.add_row(kill.target, str(kill.pid), f"{kill.at_s:.1f} s", back)
    console.print(table)
    console.print(
        f"{verdict.requests} requests, {verdict.answered} answered; {verdict.cut} streams cut by "
        f"the death of their replica and sent again; {len(verdict.faults)} faults",
        highlight=False,
        soft_wrap=True,
    )
    for fault in verdict.faults:
        console.print(f"FAULT {fault}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
