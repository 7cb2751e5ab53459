"""`cp-ray coa`: Chain-of-Agents over one text file, on a running application."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import openai
from rich.console import Console
from tqdm import tqdm

from cp_ray.agents.chain_of_agents import AgentFailed, ChainAnswer, Progress, chain_of_agents
from cp_ray.errors import ConfigError
from cp_ray.retrieval.bm25 import Document, ranker_of_parts
from cp_ray.retrieval.chunking import chunk, sections, split_evenly


def run_chain(
    document: Path, questions: Sequence[str], workers: int, url: str, model: str, *, as_json: bool
) -> int:
    """Ask all questions at once and print the answers; 1 when one of them failed.

    Raises ConfigError when the document cannot be read or is too short for `workers`.
    """
    if workers < 1:
        raise ConfigError(f"--workers: must be at least 1, not {workers}")
    blocks = read(document)
    if len(blocks) < workers:
        raise ConfigError(
            f"--workers: the document has {len(blocks)} blocks, too few for {workers} workers"
        )
    parts = split_evenly(blocks, workers)
    results = asyncio.run(_ask(parts, questions, url, model))
    failed = [result for result in results if isinstance(result, AgentFailed)]
    answers = [result for result in results if isinstance(result, ChainAnswer)]
    if as_json:
        report = {"answers": answers, "failures": [error.message for error in failed]}
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    else:
        console = Console(highlight=False, markup=False)
        for answer in answers:
            prompt = sum(call.answer.prompt_tokens for call in answer.calls)
            cached = sum(call.answer.cached_tokens for call in answer.calls)
            console.print(f"{answer.question}\n  {answer.answer.strip()}")
            console.print(f"  ({len(answer.calls)} calls, {cached:,} of {prompt:,} tokens cached)")
        for error in failed:
            console.print(f"FAILED {error.message}")
        if failed and not answers:
            console.print(f"Nothing answered at {url}: is it running there? Else pass --url.")
    return 1 if failed else 0


def read(document: Path) -> list[Document]:
    """Blocks of a text file in reading order. Raises ConfigError when it is none."""
    try:
        text = document.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"document: cannot read {document} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"document: {document} is not UTF-8 text ({error})") from error
    titled = [(s.heading or document.name, part) for s in sections(text) for part in chunk(s.text)]
    return [
        {"id": f"{document.name}/{number}", "title": title, "text": part}
        for number, (title, part) in enumerate(titled)
    ]


async def _ask(
    parts: Sequence[Sequence[Document]], questions: Sequence[str], url: str, model: str
) -> list[ChainAnswer | AgentFailed]:
    rank = ranker_of_parts(parts)
    key = os.environ.get("OPENAI_API_KEY", "none")
    async with openai.AsyncOpenAI(base_url=f"{url.rstrip('/')}/v1", api_key=key) as client:
        with tqdm(total=len(questions) * (len(parts) + 1), unit="agent", disable=None) as bar:

            def show(event: Progress) -> None:
                if event.kind == "failed":
                    bar.write(f"{event.agent} of {event.question!r}: {event.text}", sys.stderr)
                elif event.kind == "asked":
                    bar.set_postfix_str(f"{event.question[:30]!r}: {event.agent}")
                bar.update(event.kind == "answered")

            async def one(question: str) -> ChainAnswer | AgentFailed:
                try:
                    return await chain_of_agents(
                        client, model, question, parts, rank=rank, progress=show
                    )
                except AgentFailed as error:
                    return error

            return list(await asyncio.gather(*(one(question) for question in questions)))
