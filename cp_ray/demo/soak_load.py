"""The load of the soak: documents popular and new, conversations, closed and open loops."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec

MOST_OPEN = 512
"""Requests under way at most: a machine that cannot keep up shows in `late`, not in memory."""
BESIDE_S = 60.0
"""How long what is called beside a request may take."""
CONVERSATION_SHARE = 0.2
TURNS = 4


class Talk(msgspec.Struct):
    """A conversation between two of its turns."""

    name: str
    messages: list[dict[str, str]]


class Clients:
    """Sends requests, and keeps what became of them."""

    def __init__(
        self, base: str, http: httpx.AsyncClient, seed: int, beside: Callable[[], Awaitable[None]]
    ) -> None:
        """beside: called once with every request, to its end; it must not end the load."""
        self._url = f"{base}/v1/chat/completions"
        self._http = http
        self._beside = beside
        self._rng = random.Random(seed)
        self._number = 0
        self._talks: list[Talk] = []
        self.open = 0
        self.errors = 0
        self.faults_beside = 0
        self.ttft_s: list[float] = []

    def forget(self) -> None:
        """What came of requests so far does not count."""
        self.ttft_s.clear()
        self.errors = self.faults_beside = 0

    async def ask(self) -> None:
        """One request, streamed; an error is counted."""
        self.open += 1
        self._number += 1
        talk = self._next_talk() if self._rng.random() < CONVERSATION_SHARE else None
        body = self._body(talk)
        beside = asyncio.create_task(self._call_beside())
        began, first, text = time.perf_counter(), None, ""
        try:
            async with self._http.stream("POST", self._url, json=body) as response:
                async for line in response.aiter_lines():
                    said = _content(line)
                    if said and first is None:
                        first = time.perf_counter() - began
                    text += said
                    self.errors += '"error"' in line
                self.errors += response.status_code != 200
        except (httpx.HTTPError, ValueError):  # ValueError: an event that is no JSON
            self.errors += 1
        finally:
            self.open -= 1
            self.ttft_s.append(time.perf_counter() - began if first is None else first)
        await beside
        if talk is not None and len(talk.messages) < 2 * TURNS:
            talk.messages.append({"role": "assistant", "content": text})
            self._talks.append(talk)

    async def _call_beside(self) -> None:
        try:
            async with asyncio.timeout(BESIDE_S):
                await self._beside()
        except Exception:  # noqa: BLE001 - whatever it was, it is no fault of what is measured
            self.faults_beside += 1

    def _next_talk(self) -> Talk:
        """One that waits for its next turn, or a new one."""
        talk = self._talks.pop(0) if self._talks else Talk(f"talk {self._number}", [])
        talk.messages.append({"role": "user", "content": f"question {self._number}"})
        return talk

    def _body(self, talk: Talk | None) -> dict[str, Any]:
        """Half of the documents are popular, the others new: the caches always evict."""
        rng = self._rng
        names = [f"popular {int(200 * rng.random() ** 2)}" for _ in range(4)]
        names += [f"new {self._number} {place}" for place in range(2)]
        question = [{"role": "user", "content": f"question {self._number}"}]
        return {
            "model": "smollm2",
            "messages": question if talk is None else list(talk.messages),
            "documents": [f"{name} " + "word " * 80 for name in dict.fromkeys(names)],
            "max_tokens": 8,
            "stream": True,
            **({} if talk is None else {"conversation": talk.name}),
        }

    async def closed(self, clients: int, seconds: float) -> float:
        """Requests a second of so many clients, each of which waits for its answer."""
        end = time.monotonic() + seconds
        sent = 0

        async def client() -> None:
            nonlocal sent
            while time.monotonic() < end:
                await self.ask()
                sent += 1

        await asyncio.gather(*(client() for _ in range(clients)))
        return sent / seconds

    async def steady(self, rate: float, seconds: float) -> int:
        """Open loop, Poisson; returns how many were not sent for want of room."""
        end = due = time.monotonic()
        end += seconds
        late = 0
        tasks: set[asyncio.Task[None]] = set()
        while due < end:
            due += self._rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self.open >= MOST_OPEN:
                late += 1
                continue
            task = asyncio.create_task(self.ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        return late


def _content(line: str) -> str:
    """Text of one line of an event stream."""
    data = line.removeprefix("data: ")
    if not data.startswith("{"):
        return ""
    choices = json.loads(data).get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")
