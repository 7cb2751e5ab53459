"""Work for a client, as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import Receive

from cp_ray.router.call import Call

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, cancelling it when the client disconnects; then raises ClientGone."""
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    except asyncio.CancelledError:
        await _discard(working)
        raise
    finally:
        listening.cancel()
    await _discard(working)
    raise ClientGone


async def _discard(working: asyncio.Future[Any]) -> None:
    working.cancel()
    await asyncio.wait({working})
    if working.cancelled() or working.exception() is not None:
        return
    result = working.result()
    if isinstance(result, Call):  # begun in the very tick its client went away
        await result.aclose()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
