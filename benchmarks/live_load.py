"""The requests of `benchmarks.live`: a trace's contexts with made texts, and what came of each."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import msgspec

WORDS = 2000
"""Different words of generated blocks; each is one token of the simulated tokenizer."""
Contexts = Sequence[dict[str, int]]
"""Of each request its blocks in rank order, and their tokens."""


class Done(msgspec.Struct, frozen=True):
    """One answer. Tokens by the engine's count; index_ms: from prepared to planned."""

    replica: str
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    index_ms: float
    issued_ms: float


def made(requests: int, seed: int) -> list[dict[str, int]]:
    """Where there is no trace: contexts of 15 blocks about topics of Zipf popularity."""
    rng = random.Random(seed)
    topics = [[f"t{topic}b{block}" for block in range(30)] for topic in range(40)]
    weights = [1 / (rank + 1) for rank in range(len(topics))]
    drawn = rng.choices(topics, weights, k=requests)
    return [dict.fromkeys(rng.sample(topic, 15), 640) for topic in drawn]


class Texts:
    """A text for each block: as many words as it has tokens."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(WORDS)]
        self._made: dict[str, str] = {}

    def __call__(self, block: str, tokens: int) -> str:
        if block not in self._made:
            words = random.Random(block).choices(self._words, k=tokens)
            self._made[block] = " ".join(words)
        return self._made[block]


def bodies(contexts: Contexts, seed: int) -> Iterator[bytes]:
    """Chat requests, in order."""
    texts = Texts(seed)
    for number, context in enumerate(contexts):
        body = {
            "model": "sim",
            "messages": [{"role": "user", "content": f"question {number}, which of them?"}],
            "documents": [
                {"id": block, "text": texts(block, tokens)} for block, tokens in context.items()
            ],
            "max_tokens": 8,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        yield json.dumps(body).encode()


async def ask(http: aiohttp.ClientSession, base: str, reuse: str, body: bytes) -> Done | str:
    """Send one; a text where it failed."""
    headers = {
        "content-type": "application/json",
        "x-cp-ray-reuse": reuse,
        "x-cp-ray-explain": "1",
    }
    began, ttft_s = time.perf_counter(), 0.0
    explained: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    try:
        url = f"{base}/v1/chat/completions"
        async with http.post(url, data=body, headers=headers) as response:
            if response.status != 200:
                return f"{response.status}: {(await response.text())[:200]}"
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if not ttft_s and b'"content":"[' in line:
                    ttft_s = time.perf_counter() - began
                explained = event.get("cp_ray") or explained
                usage = event.get("usage") or usage
    except (aiohttp.ClientError, TimeoutError) as error:
        return repr(error)
    if not usage or not explained:
        return "not a whole answer"
    timing = explained["timing_ms"]
    return Done(
        replica=explained["replica"],
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        ttft_s=ttft_s,
        index_ms=timing["planned"] - timing["prepared"],
        issued_ms=timing["issued"],
    )
