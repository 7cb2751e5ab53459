"""Tiny HTTP workers on this machine, for routers that forward requests to real sockets.

They answer what routers ask of SGLang's and vLLM's servers when they register them, and stream each
completion as they are told: a first token, and the end of the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

BODY_LIMIT = 1 << 26
MODEL = "rivals"
_FACTS = {
    "model_path": MODEL,
    "served_model_name": MODEL,
    "tp_size": 1,
    "dp_size": 1,
    "version": "0",
}


class Workers:
    """So many servers of one event loop. `urls`: of each, once started."""

    def __init__(self, count: int) -> None:
        # Some routers try HTTP/2 first, which aiohttp logs with a traceback.
        logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
        self.urls: list[str] = []
        self._count = count
        self._runners: list[web.AppRunner] = []
        self._expected: tuple[str, asyncio.Future[int]] | None = None
        self._first: dict[str, asyncio.Event] = {}
        self._complete: dict[str, asyncio.Event] = {}

    async def start(self) -> None:
        for at in range(self._count):
            app = web.Application(client_max_size=BODY_LIMIT)
            app.router.add_post("/v1/completions", self._handler(at))
            app.router.add_get("/v1/models", _models)
            app.router.add_route("*", "/{other:.*}", _facts)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._runners.append(runner)
            self.urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")

    def expect(self, request: str) -> asyncio.Future[int]:
        """The worker that gets it, once it has come. One at a time.

        Nothing in the request names it: routers take `user` and headers for sessions.
        """
        arrived: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._expected = request, arrived
        self._first[request], self._complete[request] = asyncio.Event(), asyncio.Event()
        return arrived

    def first_token(self, request: str) -> None:
        """Its worker streams one now."""
        self._first[request].set()

    def complete(self, request: str) -> None:
        """Its worker has nothing more to say."""
        self._complete[request].set()

    async def stop(self) -> None:
        for event in (*self._first.values(), *self._complete.values()):
            event.set()
        for runner in self._runners:
            await runner.cleanup()

    def _handler(self, at: int) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(http: web.Request) -> web.StreamResponse:
            if self._expected is None:
                return web.json_response({"error": "nothing was sent"}, status=500)
            (request, arrived), self._expected = self._expected, None
            await http.read()
            stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await stream.prepare(http)
            arrived.set_result(at)
            await self._first[request].wait()
            await stream.write(_chunk(request, "a", None))
            await self._complete[request].wait()
            del self._first[request], self._complete[request]
            await stream.write(_chunk(request, "b", "length") + b"data: [DONE]\n\n")
            return stream

        return answer


def _chunk(request: str, text: str, finish_reason: str | None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}
    made = {"id": request, "object": "text_completion", "created": 0, "model": MODEL}
    return b"data: " + msgspec.json.encode({**made, "choices": [choice]}) + b"\n\n"


async def _models(_http: web.Request) -> web.Response:
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "x", "root": MODEL}
    return web.json_response({"object": "list", "data": [model]})


async def _facts(_http: web.Request) -> web.Response:
    return web.json_response(_FACTS)
