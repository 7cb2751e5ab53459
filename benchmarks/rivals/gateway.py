"""Routers that are programs: the program itself, in front of tiny HTTP workers on this machine.

A request goes through the router over real sockets when it arrives in virtual time, and its worker
holds it open until it ends there, so that what the router counts as running is what runs. Before
each question the router's own `/workers` must say so.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from benchmarks.rivals.prompts import Encode
from benchmarks.rivals.workers import MODEL, Workers
from cp_ray.core.types import Eviction
from cp_ray.replay.fleet.job import Live
from cp_ray.replay.fleet.view import FleetView

START_S = 60.0
PATIENCE_S = 600.0
"""Of a step that takes milliseconds: whoever stops these processes for a while breaks nothing."""
Result = TypeVar("Result")


class Gateway:
    """module: what `python -m` starts, and its subcommand."""

    def __init__(self, replicas: int, encode: Encode, module: Sequence[str]) -> None:
        self._encode = encode
        self._loop = asyncio.new_event_loop()
        self._workers = Workers(replicas)
        self._loop.run_until_complete(self._workers.start())
        self._url = f"http://127.0.0.1:{_free_port()}"
        self._log = Path(tempfile.mkdtemp(prefix="rivals")) / "router.log"
        self._running = [0] * replicas
        self._answers: dict[str, asyncio.Task[None]] = {}
        self._heard: dict[str, asyncio.Event] = {}
        self._settled = True
        command = [sys.executable, "-m", *module, "--host", "127.0.0.1"]
        command += ["--port", self._url.rpartition(":")[2]]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(_free_port())]
        command += ["--worker-startup-check-interval", "1", *self._policy(self._workers.urls)]
        command += ["--worker-urls", *self._workers.urls]
        with self._log.open("wb") as log:
            # It looks for a tokenizer of the model's name, which nobody has.
            environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
            self._program = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            self._client = self._loop.run_until_complete(self._connect())
        except BaseException:
            self._end()
            raise

    def _policy(self, urls: Sequence[str]) -> list[str]:  # noqa: ARG002
        """Options of the router. urls: of the workers."""
        return ["--policy", "cache_aware"]

    async def _connect(self) -> ClientSession:
        client = ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None))
        for _ in range(int(START_S / 0.1)):
            if self._program.poll() is not None:
                break
            try:
                async with client.get(f"{self._url}/workers") as answer:
                    known = (await answer.json())["workers"] if answer.status == 200 else []
                if sum(worker["is_healthy"] for worker in known) == len(self._workers.urls):
                    return client
            except ClientError:
                pass
            await asyncio.sleep(0.1)
        await client.close()
        raise RuntimeError(f"the router did not start: {self._log.read_text()[-2000:]}")

    def choose(self, live: Live, view: FleetView) -> int:
        if not self._settled:
            self._run(self._settle())
            self._settled = True
        if self._running != view.running:
            raise RuntimeError(f"the simulator runs {view.running}, we hold {self._running}")
        at = self._run(
            self._send(live.request_id, self._encode(live.pieces), live.job.output_tokens)
        )
        self._running[at] += 1
        return at

    async def _send(self, request: str, prompt: object, output_tokens: int) -> int:
        arrived = self._workers.expect(request)
        body = {"model": MODEL, "prompt": prompt, "max_tokens": output_tokens, "stream": True}
        heard = self._heard[request] = asyncio.Event()
        answer = self._answers[request] = asyncio.ensure_future(self._post(body, heard))
        either: set[asyncio.Future[Any]] = {arrived, answer}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not arrived.done():
            await answer
            raise RuntimeError("the router answered by itself")
        return arrived.result()

    async def _post(self, body: dict[str, object], heard: asyncio.Event) -> None:
        async with self._client.post(f"{self._url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                text = await answer.text()
                raise RuntimeError(f"the router answered {answer.status}: {text[:500]}")
            async for _ in answer.content.iter_any():
                heard.set()

    async def _settle(self) -> None:
        """Until the router itself counts what runs."""
        while await self.loads() != self._running:  # noqa: ASYNC110 - only it can tell
            await asyncio.sleep(0.001)

    async def loads(self) -> list[int]:
        """Requests under way at each worker, by the router's account."""
        async with self._client.get(f"{self._url}/workers") as answer:
            known = {worker["url"]: worker["load"] for worker in (await answer.json())["workers"]}
        return [known[url] for url in self._workers.urls]

    def first_token(self, live: Live) -> None:
        self._workers.first_token(live.request_id)
        self._run(self._heard.pop(live.request_id).wait())

    def ended(self, live: Live) -> None:
        self._workers.complete(live.request_id)
        self._run(self._answers.pop(live.request_id))
        self._running[live.replica] -= 1
        self._settled = False

    def evicted(self, replica: int, evictions: Sequence[Eviction]) -> None:
        """They listen to none."""

    def close(self) -> None:
        self._loop.run_until_complete(self._hang_up())
        self._end()

    async def _hang_up(self) -> None:
        for answer in self._answers.values():
            answer.cancel()
        await asyncio.gather(*self._answers.values(), return_exceptions=True)
        await self._client.close()

    def _end(self) -> None:
        self._program.terminate()
        try:
            self._program.wait(START_S)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()
        shutil.rmtree(self._log.parent)
        self._loop.run_until_complete(self._workers.stop())
        self._loop.close()

    def _run(self, awaitable: Coroutine[Any, Any, Result] | asyncio.Task[Result]) -> Result:
        return self._loop.run_until_complete(asyncio.wait_for(awaitable, PATIENCE_S))


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
