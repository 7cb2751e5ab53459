"""TTFT of real conversations on real vLLM: plain, and with de-duplication.

    python -m benchmarks.conversation_ttft [--conversations N] [--k K] [--out FILE]

samples/mtrag_20conv, turn by turn, one request at a time, one replica, SmolLM2 on the CPU. Each
turn is asked twice, in an order that alternates: `plain` (header x-cp-ray-reuse: plain) and
`full`. Both carry the whole history with the documents of all turns, as each sent them; they
differ in the system prompt by one letter, so that neither finds the other's cache. The history has
the gold answers. Turns that would not fit into the model's context are left out, for both.
Every finished turn is a line of FILE; a second run goes on behind them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from scipy.stats import t as student

from benchmarks.data import folder
from cp_ray.config import AppConfig
from cp_ray.demo.arms import running
from cp_ray.workers.models import resolve_model

ARMS = {"plain": "A", "full": "B"}
CONTEXT = 8192
SYSTEM = "You are assistant {}. Answer the question from the documents. Be brief."


def turns(most: int, k: int) -> Iterator[tuple[str, int, str, list[dict[str, str]], str]]:
    """(conversation, turn, question, documents, gold answer)."""
    data = folder() / "samples/mtrag_20conv"
    with gzip.open(data / "blocks.jsonl.gz", "rt") as lines:
        texts = {block["block_id"]: block["text"] for block in map(json.loads, lines)}
    names: dict[str, None] = {}
    with gzip.open(data / "requests.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            names[line["session"]] = None
            if len(names) > most:
                return
            documents = [{"id": str(b), "text": texts[b]} for b in line["context"][:k]]
            answer = line["answers"][0] if line["answers"] else "I do not know."
            yield line["session"], line["turn"], line["question"], documents, answer


def ask(client: httpx.Client, url: str, body: dict[str, Any], arm: str) -> dict[str, float] | None:
    """TTFT and tokens of one request; None when it does not fit."""
    headers = {"x-cp-ray-reuse": arm, "x-cp-ray-explain": "1"}
    started = time.perf_counter()
    first = 0.0
    usage: dict[str, Any] = {}
    address = f"{url}/v1/chat/completions"
    with client.stream("POST", address, json=body, headers=headers) as answer:
        if answer.status_code == 400:
            assert b"context_length_exceeded" in answer.read()
            return None
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not first and '"content":' in line and '"content":""' not in line:
                first = time.perf_counter() - started
            if line.startswith("data: {"):
                usage = json.loads(line[6:]).get("usage") or usage
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    took = first or time.perf_counter() - started
    return {"ttft_s": took, "prompt": usage["prompt_tokens"], "cached": cached}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--engine", choices=("vllm", "simulated"), default="vllm")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after so long")
    parser.add_argument("--out", type=Path, default=Path("out/conversation_ttft.jsonl"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {(row["conversation"], row["turn"]) for row in rows}
    wanted = list(turns(arguments.conversations, arguments.k))
    # A conversation that was cut in its middle would find cold caches: it begins again.
    whole = {name for name, *_ in wanted} - {n for n, t, *_ in wanted if (n, t) not in done}
    rows = [row for row in rows if row["conversation"] in whole]
    if len(whole) < len({name for name, *_ in wanted}):
        if arguments.engine == "vllm":
            resolve_model("smollm2")
        config = AppConfig(engine=arguments.engine, max_model_len=CONTEXT, cache_tokens=40_000)
        with (
            running("conversation-ttft", config, Path("out")) as app,
            httpx.Client(timeout=600) as client,
            arguments.out.open("w") as file,
        ):
            file.writelines(json.dumps(row) + "\n" for row in rows)
            rows += run(client, app.url, [w for w in wanted if w[0] not in whole], file, arguments)
    report(rows)


def run(
    client: httpx.Client, url: str, wanted: list[Any], file: Any, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    history: dict[tuple[str, str], list[dict[str, str]]] = {}
    rows = []
    started = time.monotonic()
    for place, (name, turn, question, documents, gold) in enumerate(wanted):
        if not turn and time.monotonic() - started > arguments.seconds:
            break
        row: dict[str, Any] = {"conversation": name, "turn": turn}
        for arm in ("plain", "full") if place % 2 else ("full", "plain"):
            system = {"role": "system", "content": SYSTEM.format(ARMS[arm])}
            messages = history.setdefault((name, arm), [system])
            messages.append({"role": "user", "content": question})
            body = {
                "model": "smollm2",
                "messages": messages,
                "documents": documents,
                "conversation": f"{name}/{arm}",
                "max_tokens": 1,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            row[arm] = ask(client, url, body, arm)
            messages.append({"role": "assistant", "content": gold})
        if row["plain"] is None or row["full"] is None:
            for arm in ARMS:
                del history[name, arm][-2:]  # left out, for both
        rows.append(row)
        file.write(json.dumps(row) + "\n")
        file.flush()
    return rows


def report(rows: list[dict[str, Any]]) -> None:
    """Ratio of mean TTFTs, and a one-sided lower 95% bound from the pairs (Fieller's method)."""
    pairs = [row for row in rows if row["plain"] and row["full"]]
    left_out = len(rows) - len(pairs)
    plain = [row["plain"]["ttft_s"] for row in pairs]
    full = [row["full"]["ttft_s"] for row in pairs]
    print(f"{len(pairs)} turns, {left_out} left out for want of context")
    if len(pairs) < 3:
        return
    computed = {
        arm: statistics.fmean(row[arm]["prompt"] - row[arm]["cached"] for row in pairs)
        for arm in ARMS
    }
    print(f"computed tokens a turn: plain {computed['plain']:.0f}, full {computed['full']:.0f}")
    ratio = statistics.fmean(plain) / statistics.fmean(full)
    print(f"mean TTFT: plain {statistics.fmean(plain):.3f} s, full {statistics.fmean(full):.3f} s")
    print(f"ratio {ratio:.3f}, lower 95% bound {lower_bound(plain, full):.3f}")


def lower_bound(plain: list[float], full: list[float]) -> float:
    """The largest r with mean(plain - r * full) above zero at 95%, one-sided."""
    critical = float(student.ppf(0.95, len(plain) - 1))
    low, high = 0.0, statistics.fmean(plain) / statistics.fmean(full)
    for _ in range(60):
        middle = (low + high) / 2
        extra = [a - middle * b for a, b in zip(plain, full, strict=True)]
        error = statistics.stdev(extra) / math.sqrt(len(extra))
        if statistics.fmean(extra) - critical * error > 0:
            low = middle
        else:
            high = middle
    return low


if __name__ == "__main__":
    main()
