"""The load of the chaos suite, and the client's own log of it: what every sending came to."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import httpx
import msgspec

TRIES = 12
PLAIN_ONE_IN = 4
"""One in so many requests asks for plain balancing: no plan, no order, no part of the index."""
PATIENCE_S = 120.0
"""How long a client knocks at a closed port: nothing it sends is accepted meanwhile."""
TIMEOUT_S = 60.0
OUTPUT_TOKENS = 8
TEXT = "[simulated]" + " token" * (OUTPUT_TOKENS - 1)
"""Of every whole answer: more is said twice, less is lost."""
WORDS = ("alpha", "bravo", "carol", "delta", "echo", "foxtrot", "golf", "hotel")


class Sending(msgspec.Struct, frozen=True):
    """One sending of one request, on the load's clock.

    started: the first token had come. error: None for one whole answer. refused: nobody listened
    at the port, so nothing was sent. replica, reason: of the answer's explanation. plain: sent
    without a plan.
    """

    request: int
    streamed: bool
    from_s: float
    to_s: float
    started: bool
    error: str | None
    refused: bool = False
    replica: str = ""
    reason: str = ""
    plain: bool = False


class Load:
    """Clients that ask, one request after the other, until they are stopped.

    Each sends a request again, TRIES times in all, when its connection breaks or the answer is
    an error, and for PATIENCE_S while the port is closed: as a client library does. lost: requests
    that were not answered even so.
    """

    def __init__(self, base: str, clients: int = 4, seed: int = 0, key: str = "none") -> None:
        self._base = base
        self._clients = clients
        self._rng = random.Random(seed)
        self._zero = time.monotonic()
        self._number = 0
        self._over = False
        self._headers = {"x-cp-ray-explain": "1", "authorization": f"Bearer {key}"}
        self.log: list[Sending] = []
        self.lost: list[int] = []
        self._open: dict[int, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def clock(self) -> float:
        """Seconds since the load was made."""
        return time.monotonic() - self._zero

    async def __aenter__(self) -> Load:
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S)
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    def longest_wait_s(self) -> float:
        """How long the oldest sending under way has waited."""
        return max((self.clock() - from_s for from_s in self._open.values()), default=0.0)

    def since(self, moment_s: float) -> list[Sending]:
        """What was under way at that moment, or began later."""
        return [sending for sending in self.log if sending.to_s >= moment_s]

    async def _client(self) -> None:
        while not self._over:
            self._number += 1
            await self._ask(self._number)
            await asyncio.sleep(self._rng.uniform(0.0, 0.05))

    async def _ask(self, number: int) -> None:
        body = self._body(number)
        began_s, tries, pause_s = self.clock(), 0, 0.2
        while tries < TRIES and self.clock() - began_s < PATIENCE_S:
            self._open[number] = self.clock()
            sending = await self._send(number, body)
            del self._open[number]
            self.log.append(sending)
            if sending.error is None:
                return
            tries += not sending.refused
            pause_s = min(2 * pause_s, 4.0)
            await asyncio.sleep(pause_s)
        self.lost.append(number)

    def _body(self, number: int) -> dict[str, Any]:
        ranks = {int(40 * self._rng.random() ** 2) for _ in range(6)}
        documents = [f"document {rank} " + f"{WORDS[rank % 8]} " * 80 for rank in ranks]
        return {
            "model": "smollm2",
            "messages": [{"role": "user", "content": f"question {number}"}],
            "documents": documents,
            "max_tokens": OUTPUT_TOKENS,
            "stream": number % 2 == 0,
            "stream_options": {"include_usage": True} if number % 2 == 0 else None,
        }

    async def _send(self, number: int, body: dict[str, Any]) -> Sending:
        from_s = self.clock()
        seen: dict[str, Any] = {}
        refused, error = False, None
        try:
            headers = self._headers | ({"x-cp-ray-reuse": "plain"} if _is_plain(number) else {})
            await (self._stream if body["stream"] else self._whole)(body, headers, seen)
        except (httpx.HTTPError, _Wrong) as fault:
            error = f"{type(fault).__name__}: {fault}"
            refused = isinstance(fault, httpx.ConnectError)
        explained = seen.get("cp_ray", {})
        return Sending(
            number,
            body["stream"],
            from_s,
            self.clock(),
            bool(seen.get("started")),
            error,
            refused,
            explained.get("replica") or "",
            explained.get("reason", ""),
            _is_plain(number),
        )

    async def _whole(
        self, body: dict[str, Any], headers: dict[str, str], seen: dict[str, Any]
    ) -> None:
        url = f"{self._base}/v1/chat/completions"
        response = await self._http.post(url, json=body, headers=headers)
        if response.status_code != 200:
            raise _Wrong(f"{response.status_code} {response.text[:200]}")
        answer = response.json()
        seen |= {"started": True, "cp_ray": answer["cp_ray"]}
        if answer["usage"]["completion_tokens"] != OUTPUT_TOKENS:
            raise _Wrong(f"not the whole answer: {answer['usage']}")
        _check_text(answer["choices"][0]["message"]["content"])

    async def _stream(
        self, body: dict[str, Any], headers: dict[str, str], seen: dict[str, Any]
    ) -> None:
        """One answer: text, one finish reason, one usage, then [DONE] and nothing behind it."""
        kinds: list[str] = []
        text = ""
        url = f"{self._base}/v1/chat/completions"
        async with self._http.stream("POST", url, json=body, headers=headers) as response:
            if response.status_code != 200:
                raise _Wrong(f"{response.status_code} {(await response.aread())[:200]!r}")
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if not data:
                    continue
                if data == "[DONE]":
                    kinds.append("done")
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    raise _Wrong(chunk["error"]["message"])
                seen |= {key: chunk[key] for key in ("cp_ray",) if key in chunk}
                kinds += _kinds(chunk)
                text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
                seen["started"] = seen.get("started") or "text" in kinds
        whole = [kind for kind in kinds if kind != "text"] == ["end", "usage", "done"]
        if not whole or "text" not in kinds:
            raise _Wrong(f"not one whole answer: {kinds[-4:]}")
        _check_text(text)


def _is_plain(number: int) -> bool:
    return number // 2 % PLAIN_ONE_IN == 0  # as many of them streamed as of the others


class _Wrong(Exception):
    """An answer that is an error, or is not whole."""


def _check_text(text: str) -> None:
    if text != TEXT:
        raise _Wrong(f"not the answer once: {text!r}")


def _kinds(chunk: dict[str, Any]) -> list[str]:
    kinds = []
    for choice in chunk["choices"]:
        if choice["delta"].get("content"):
            kinds.append("text")
        if choice.get("finish_reason"):
            kinds.append("end")
    if chunk.get("usage"):
        kinds.append("usage")
    return kinds
