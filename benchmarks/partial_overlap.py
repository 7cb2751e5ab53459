"""Partial overlap: what pointers save where a known share of a conversation's prompt is repeated.

    python -m benchmarks.partial_overlap [--seed S]

Two turns of 15 documents each, real passages (samples/mtrag_20conv), tokens of SmolLM2. Documents
of the second turn repeat text of the first, so many tokens that they are 10.1% of the prompt, in
documents with other words around it, so that no block is equal to another. `repeated`: tokens of
the repeated text, of the whole prompt's. `saved`: of the same, by pointers. The last rows are
nothing but real text: passages cut into overlapping windows, as retrievers cut them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from pathlib import Path

from benchmarks.data import folder
from cp_ray.core.types import RequestId
from cp_ray.router.api import ChatRequest
from cp_ray.router.assembly import Assembler, Limits
from cp_ray.router.auth import Tenant
from cp_ray.router.conversation import Turn
from cp_ray.router.tokenizer import HuggingFaceTokenizer, PromptTokenizer
from cp_ray.workers.models import resolve_model

SHARE = 0.101
EACH = 15
TENANT = Tenant("default")


def conversation(
    tokenizer: PromptTokenizer, first: list[str], second: list[str], least: int
) -> tuple[int, float]:
    """Prompt tokens of the second turn, and milliseconds to prepare it."""
    assembler = Assembler(tokenizer, "m", Limits(partial_overlap_tokens=least))
    turns: tuple[Turn, ...] = ()
    messages = []
    tokens, took = 0, 0.0
    for number, documents in enumerate((first, second)):
        messages.append({"role": "user", "content": f"question {number}?"})
        request = ChatRequest.model_validate(
            {"model": "m", "messages": messages, "documents": documents, "conversation": "c"}
        )
        started = time.perf_counter()
        prepared = assembler.prepare(request, TENANT, RequestId(str(number)), turns=turns)
        took = time.perf_counter() - started
        finished = assembler.finish(prepared, prepared.plan.context)
        tokens = len(finished.prompt)
        assert prepared.kept is not None
        turns = (*turns, finished.turn(RequestId(str(number)), prepared.kept))
        messages.append({"role": "assistant", "content": f"answer {number}"})
    return tokens, took * 1000


def planted(
    texts: list[str], chosen: random.Random, words: int | None, tokenizer: PromptTokenizer
) -> tuple[list[str], list[str], int]:
    """(first turn, second turn, repeated tokens). words: of each repeated passage, None = all."""
    picked = chosen.sample(texts, 2 * EACH)
    first, second = picked[:EACH], list(picked[EACH:])
    total = sum(len(tokenizer.encode(text)) for text in picked)
    # What is repeated comes on top: r / (total + r) = SHARE.
    wanted = total * SHARE / (1 - SHARE)
    repeated, place = 0, 0
    while words != 0 and wanted - repeated > 20:
        source = first[place % EACH].split(" ")
        length = min(words or len(source), len(source))
        start = chosen.randrange(len(source) - length + 1)
        passage = " ".join(source[start : start + length])
        count = len(tokenizer.encode(passage))
        while repeated + count > wanted + 20 and length > 20:
            length -= 10
            passage = " ".join(source[start : start + length])
            count = len(tokenizer.encode(passage))
        host = second[place % EACH].split(" ")
        middle = len(host) // 2
        second[place % EACH] = " ".join([*host[:middle], passage, *host[middle:]])
        repeated += count
        place += 1
    return first, second, repeated


def windows(texts: list[str], words: int, overlap: int) -> tuple[list[str], list[str]]:
    """Passages cut into windows that share `overlap` words: even ones first, then the odd ones."""
    cut = []
    for text in texts:
        split = text.split(" ")
        starts = range(0, max(1, len(split) - overlap), words - overlap)
        cut += [" ".join(split[start : start + words]) for start in starts]
    cut = cut[: 2 * EACH]
    return cut[::2], cut[1::2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=int, default=24, help="tokens a pointer must save")
    arguments = parser.parse_args()
    file = folder() / "samples/mtrag_20conv/blocks.jsonl.gz"
    with gzip.open(file, "rt") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    texts = [text for text in texts if len(text.split(" ")) > 150]
    tokenizer = HuggingFaceTokenizer(str(Path(resolve_model("tiny", progress=False).path)))
    print(f"{'repeated are':<34} {'prompt':>7} {'repeated':>9} {'saved':>7} {'prepare':>9}")
    for name, words in (
        ("nothing (the texts as they are)", 0),
        ("whole documents", None),
        ("passages of 200 words", 200),
        ("passages of 100 words", 100),
        ("passages of 50 words", 50),
    ):
        totals = [0, 0, 0]
        ms = []
        for number in range(10):
            chosen = random.Random(arguments.seed * 1000 + number)
            first, second, repeated = planted(texts, chosen, words, tokenizer)
            off, _ = conversation(tokenizer, first, second, 0)
            on, took = conversation(tokenizer, first, second, arguments.least)
            totals = [a + b for a, b in zip(totals, (off, repeated, off - on), strict=True)]
            ms.append(took)
        _show(name, totals, ms)
    for words, overlap in ((250, 50), (200, 100)):
        totals, ms = [0, 0, 0], []
        for number in range(10):
            chosen = random.Random(arguments.seed * 1000 + number)
            long = [" ".join(chosen.sample(texts, 4)) for _ in range(8)]
            first, second = windows(long, words, overlap)
            off, _ = conversation(tokenizer, first, second, 0)
            on, took = conversation(tokenizer, first, second, arguments.least)
            totals = [a + b for a, b in zip(totals, (off, 0, off - on), strict=True)]
            ms.append(took)
        _show(f"windows of {words} words, {overlap} shared", totals, ms)


def _show(name: str, totals: list[int], ms: list[float]) -> None:
    off, repeated, saved = totals
    share = f"{repeated / off:>9.1%}" if repeated else f"{'':>9}"
    print(f"{name:<34} {off // 10:>7} {share} {saved / off:>7.1%} {sorted(ms)[5]:>6.1f} ms")


if __name__ == "__main__":
    main()
