"""A light client of event streams: what the machine's CPUs do should be the server's work."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Sequence
from typing import Any, Literal

import aiohttp
import msgspec

WORDS = 2000
"""Different words in the generated texts."""
POOL = 256
"""Paragraphs that documents begin anew with, or are."""
SHAPES = {2: (4, 75), 60: (15, 640)}
"""Body in KB -> documents, and words of each."""

Texts = Literal["new", "known"]


class Answer(msgspec.Struct, frozen=True):
    """One whole streamed answer. Times in seconds from sending; explained: cp_ray's own account."""

    ttft_s: float
    total_s: float
    explained: dict[str, Any]


class Bodies:
    """Request bodies of one size. texts: "new" = nobody sent them before; "known" = of a pool."""

    def __init__(self, kilobytes: int, texts: Texts, seed: int, max_tokens: int = 16) -> None:
        rng = random.Random(seed)
        self._documents, words = SHAPES[kilobytes]
        letters = "abcdefghijklmnopqrstuvwxyz"
        known = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(WORDS)]
        self._pool = [" ".join(rng.choices(known, k=words)) for _ in range(POOL)]
        self._new = texts == "new"
        self._numbers = itertools.count()
        self._rng = rng
        self._max_tokens = max_tokens

    def next(self) -> bytes:
        """The next body."""
        number = next(self._numbers)
        documents = self._rng.sample(self._pool, self._documents)
        if self._new:
            documents = [f"{number} {place} {text}" for place, text in enumerate(documents)]
        body = {
            "model": "sim",
            "messages": [{"role": "user", "content": f"question {number}?"}],
            "documents": documents,
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stream": True,
        }
        return json.dumps(body).encode()


class Sender:
    """Sends bodies to one application; failed: what was no whole answer."""

    def __init__(self, http: aiohttp.ClientSession, base: str) -> None:
        self._http = http
        self._url = f"{base}/v1/chat/completions"
        self.failed: list[str] = []
        self.started = 0

    async def send(self, body: bytes) -> Answer | None:
        """One request; None when it failed."""
        began = time.perf_counter()
        try:
            return await self._send(body, began)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self.failed.append(repr(error))
            return None

    async def _send(self, body: bytes, began: float) -> Answer:
        headers = {"content-type": "application/json", "x-cp-ray-explain": "1"}
        ttft_s, last, whole = 0.0, b"", False
        async with self._http.post(self._url, data=body, headers=headers) as response:
            if response.status != 200:
                raise ValueError(f"{response.status}: {(await response.text())[:200]}")
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                if line.startswith(b"data: [DONE]"):
                    whole = True
                    continue
                last = line
                if not ttft_s and b'"content":"[' in line:
                    ttft_s = time.perf_counter() - began
                    self.started += 1
        total_s = time.perf_counter() - began
        event = json.loads(last.removeprefix(b"data: ") or b"{}")
        if not whole or event["choices"][0]["finish_reason"] is None:
            raise ValueError(f"not a whole answer: {last[:200]!r}")
        return Answer(ttft_s, total_s, event.get("cp_ray", {}))

    async def closed(self, bodies: Bodies, clients: int, seconds: float) -> float:
        """Answers a second of so many clients, each of which waits for its answer."""
        end = time.monotonic() + seconds
        done = 0

        async def client() -> None:
            nonlocal done
            while time.monotonic() < end:
                answer = await self.send(bodies.next())
                done += answer is not None

        await asyncio.gather(*(client() for _ in range(clients)))
        return done / seconds

    async def steady(self, bodies: Bodies, gaps_s: Sequence[float]) -> tuple[list[Answer], float]:
        """Send after each gap, whatever came of those before; answers, and seconds in all."""
        began = due = time.monotonic()
        tasks = []
        for gap_s in gaps_s:
            due += gap_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(self.send(bodies.next())))
        answers = await asyncio.gather(*tasks)
        return [a for a in answers if a is not None], time.monotonic() - began
