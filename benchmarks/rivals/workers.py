"""Tiny HTTP workers on this machine, for routers that forward requests to real sockets.

They answer what routers ask of SGLang's and vLLM's servers when they register them, and hold each
completion open until they are told that its answer is complete.
"""

from __future__ import annotations

import asyncio
import logging

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
        self._complete[request] = asyncio.Event()
        return arrived

    def complete(self, request: str) -> None:
        """Its worker answers now."""
        self._complete[request].set()

    async def stop(self) -> None:
        for complete in self._complete.values():
            complete.set()
        for runner in self._runners:
            await runner.cleanup()

    def _handler(self, at: int):  # type: ignore[no-untyped-def]
        async def answer(http: web.Request) -> web.Response:
            if self._expected is None:
                return web.json_response({"error": "nothing was sent"}, status=500)
            (request, arrived), self._expected = self._expected, None
            await http.read()
            arrived.set_result(at)
            await self._complete[request].wait()
            del self._complete[request]
            choice = {"index": 0, "text": "", "finish_reason": "stop", "logprobs": None}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            made = {"id": request, "object": "text_completion", "created": 0, "model": MODEL}
            return web.json_response({**made, "choices": [choice], "usage": usage})

        return answer


async def _models(_http: web.Request) -> web.Response:
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "x", "root": MODEL}
    return web.json_response({"object": "list", "data": [model]})


async def _facts(_http: web.Request) -> web.Response:
    return web.json_response(_FACTS)
