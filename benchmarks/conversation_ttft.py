"""TTFT of real conversations on real vLLM: plain, and with de-duplication.

    python -m benchmarks.conversation_ttft [--conversations N] [--k K] [--seconds S] [--out FILE]

samples/mtrag_20conv, turn by turn, one request at a time, one replica, SmolLM2 on the CPU. Each
turn is asked twice, in an order that alternates: `plain` (header x-cp-ray-reuse: plain) and
`full`. Both carry the whole history with the documents of all turns, as each sent them, and vLLM
caches prefixes in both; they differ in the system prompt by one letter, so that neither finds the
other's cache. The history has the gold answers. A conversation ends for both where its plain
prompt no longer fits the model's context.

Every finished turn is a line of FILE. No conversation begins after S seconds; a second run goes
on with those that are missing. OMP_NUM_THREADS is the engine's number of threads (default 1).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import httpx

from benchmarks.data import folder
from benchmarks.paired import ratio_interval
from cp_ray.config import AppConfig
from cp_ray.demo.arms import running
from cp_ray.workers.models import resolve_model

ARMS = {"plain": "A", "full": "B"}
CONTEXT = 8192
SYSTEM = "You are assistant {}. Answer the question from the documents. Be brief."
PAPER = (
    "paper (Table 3a, MT-RAG, Qwen3-4B, Llama3.1-8B, Qwen3-30B, one H100): TTFT 3.09 to 3.45 times "
    "lower than LMCache, up to 2.00 than RadixCache, up to 1.55 than CacheBlend"
)
Turn = tuple[str, int, str, list[dict[str, str]], str]
Row = dict[str, Any]


def turns(most: int, k: int) -> Iterator[Turn]:
    """(conversation, turn, question, documents, gold answer); a conversation's come together."""
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


class Asker:
    """Asks the application. url: its base."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self._url = url
        self._client = client

    def fits(self, body: Row) -> bool:
        """Whether the plain prompt fits the model; the engine is not asked."""
        answer = self._client.post(
            f"{self._url}/v1/context/plan", json=body, headers={"x-cp-ray-reuse": "plain"}
        )
        if answer.status_code == 400:
            assert "context_length_exceeded" in answer.text, answer.text
            return False
        answer.raise_for_status()
        return True

    def ask(self, body: Row, arm: str) -> dict[str, float]:
        """Seconds to the first token, tokens of the prompt and those found in the cache."""
        streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
        address, headers = f"{self._url}/v1/chat/completions", {"x-cp-ray-reuse": arm}
        first = 0.0
        usage: Row = {}
        started = time.perf_counter()
        with self._client.stream("POST", address, json=streamed, headers=headers) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if not first and '"content":' in line and '"content":""' not in line:
                    first = time.perf_counter() - started
                if line.startswith("data: {"):
                    usage = json.loads(line[6:]).get("usage") or usage
        # Where the one token is the end of the answer, no content comes.
        took = first or time.perf_counter() - started
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {"ttft_s": took, "prompt": usage["prompt_tokens"], "cached": cached}


def play(asker: Asker, wanted: Sequence[Turn], seconds: float, file: TextIO) -> list[Row]:
    """Ask all turns; none of a conversation that would begin after so many seconds."""
    history: dict[str, list[dict[str, str]]] = {}
    rows: list[Row] = []
    ended: set[str] = set()
    started = time.monotonic()
    for place, (name, turn, question, documents, gold) in enumerate(wanted):
        if not turn:
            if time.monotonic() - started > seconds:
                break
            history = {
                arm: [{"role": "system", "content": SYSTEM.format(letter)}]
                for arm, letter in ARMS.items()
            }
        bodies: dict[str, Row] = {
            arm: {
                "model": "smollm2",
                "messages": [*history[arm], {"role": "user", "content": question}],
                "documents": documents,
                "conversation": f"{name}/{arm}",
                "max_tokens": 1,
                "temperature": 0,
            }
            for arm in ARMS
        }
        row: Row = {"conversation": name, "turn": turn}
        if name not in ended and asker.fits(bodies["plain"]):
            for arm in ("plain", "full") if place % 2 else ("full", "plain"):
                row[arm] = asker.ask(bodies[arm], arm)
                answer = {"role": "assistant", "content": gold}
                history[arm] = [*bodies[arm]["messages"], answer]
        else:
            ended.add(name)
        rows.append(row)
        file.write(json.dumps(row) + "\n")
        file.flush()
    return rows


def report(rows: Sequence[Row]) -> str:
    """What was found, by turn, and the ratio of mean TTFTs with its intervals."""
    pairs = [row for row in rows if "full" in row]
    names = dict.fromkeys(row["conversation"] for row in rows)
    lines = [
        f"{len(pairs)} turns of {len(names)} conversations; {len(rows) - len(pairs)} left out, "
        "whose plain prompt does not fit"
    ]
    lines.append(
        f"{'turn':<6} {'turns':>5} {'prompt':>13} {'found':>13} {'computed':>13} {'TTFT, s':>15} "
        f"{'ratio':>6}   plain, full"
    )
    parts = [(str(n + 1), [row for row in pairs if row["turn"] == n]) for n in range(4)]
    parts += [("5-", [row for row in pairs if row["turn"] >= 4]), ("all", pairs)]
    lines += [_line(name, part) for name, part in parts if part]
    if len(names) > 2:
        whole = [[row for row in pairs if row["conversation"] == name] for name in names]
        for unit, members in (("turns", [[row] for row in pairs]), ("conversations", whole)):
            plain, full = ([sum(_of(m, arm, "ttft_s")) for m in members] for arm in ARMS)
            low, ratio, high = ratio_interval(plain, full)
            lower = ratio_interval(plain, full, 0.90)[0]
            lines.append(
                f"mean TTFT, plain over full: {ratio:.3f} [{low:.3f}, {high:.3f}], at least "
                f"{lower:.3f} (one-sided 95%), over {unit}"
            )
    return "\n".join([*lines, PAPER])


def _of(rows: Sequence[Row], arm: str, field: str) -> list[float]:
    if field == "computed":
        return [row[arm]["prompt"] - row[arm]["cached"] for row in rows]
    return [row[arm][field] for row in rows]


def _line(name: str, rows: Sequence[Row]) -> str:
    means = {
        field: [statistics.fmean(_of(rows, arm, field)) for arm in ARMS]
        for field in ("prompt", "cached", "computed", "ttft_s")
    }
    tokens = [
        f"{f'{plain:.0f}, {full:.0f}':>13}"
        for plain, full in (means[field] for field in ("prompt", "cached", "computed"))
    ]
    plain, full = means["ttft_s"]
    return (
        f"{name:<6} {len(rows):>5} {' '.join(tokens)} {f'{plain:.3f}, {full:.3f}':>15} "
        f"{plain / full:>6.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--engine", choices=("vllm", "simulated"), default="vllm")
    parser.add_argument("--seconds", type=float, default=3600, help="no conversation begins later")
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
    missing = [turn for turn in wanted if turn[0] not in whole]
    started = time.monotonic()
    if missing:
        if arguments.engine == "vllm":
            resolve_model("smollm2")
        config = AppConfig(engine=arguments.engine, max_model_len=CONTEXT, cache_tokens=40_000)
        with (
            running("conversation-ttft", config, Path("out")) as app,
            httpx.Client(timeout=600) as client,
            arguments.out.open("w") as file,
        ):
            file.writelines(json.dumps(row) + "\n" for row in rows)
            rows += play(Asker(app.url, client), missing, arguments.seconds, file)
    print(
        f"{arguments.engine}, k={arguments.k}, {os.environ.get('OMP_NUM_THREADS', '1')} thread(s), "
        f"{time.monotonic() - started:.0f} s"
    )
    print(report(rows))


if __name__ == "__main__":
    main()
