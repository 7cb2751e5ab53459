"""Whether the engine inside a living replica still answers; what it keeps waiting when not.

A prefill of minutes and a driver that hangs look alike from outside. So an engine that has given
nobody a token for `ask_after_s`, though somebody waits, is asked for a sign of life, which it
gives between two steps, however long its queue is. One that owes it for `answer_s` hangs: what
waits is told so at once, and may go to another replica, and the replica is to be replaced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from cp_ray.errors import CpRayError, EngineGone
from cp_ray.workers.engine import Chunk

log = logging.getLogger("ray.serve")


class EngineWatch:
    """One for each replica, for its event loop. `run` asks, for ever.

    ping: of the engine. hangs: called once an engine is found to hang.
    """

    def __init__(
        self,
        ping: Callable[[], Awaitable[None]],
        hangs: Callable[[], None],
        *,
        ask_after_s: float,
        answer_s: float,
    ) -> None:
        self._ping = ping
        self._hangs = hangs
        self._ask_after_s = ask_after_s
        self._answer_s = answer_s
        self._waits: set[asyncio.Timeout] = set()
        self._heard_s = time.monotonic()
        self._hung = False

    def check(self) -> None:
        """Raise EngineGone while the engine owes a sign of life for too long."""
        if self._hung:
            raise EngineGone(
                f"the engine has not answered for {self._answer_s:g} s (health_check_timeout_s) "
                "and is replaced: send the request again"
            )

    async def watched(self, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
        """The same chunks. Raises EngineGone when the engine hangs."""
        self.check()
        async with aclosing(chunks):
            while (chunk := await self._next(chunks)) is not None:
                self._heard_s = time.monotonic()
                yield chunk

    async def run(self) -> None:
        """Look after the engine, for ever."""
        while True:
            await asyncio.sleep(self._ask_after_s)
            if self._waits and time.monotonic() - self._heard_s >= self._ask_after_s:
                await self._ask()

    async def _next(self, chunks: AsyncGenerator[Chunk, None]) -> Chunk | None:
        try:
            # Nothing but a hung engine ends this wait: a task for each token would cost more.
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    return await anext(chunks, None)
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            self.check()
            raise

    async def _ask(self) -> None:
        asked = asyncio.ensure_future(self._sign())
        await asyncio.wait({asked}, timeout=self._answer_s)
        if not asked.done():
            self._hung = True
            log.error("The engine does not answer for %g s: it hangs.", self._answer_s)
            now = asyncio.get_running_loop().time()
            for wait in list(self._waits):
                wait.reschedule(now)
            self._hangs()
        self._hung = not await asked
        self._heard_s = time.monotonic()

    async def _sign(self) -> bool:
        """True when the engine answered, False when it cannot any more."""
        try:
            await self._ping()
        except CpRayError:  # it is dead, not hung: `check_health` says so
            return not self._hung
        return True
