"""Thousands of event streams open at a time: nothing may crash, and every answer must be whole."""

from __future__ import annotations

import asyncio
import resource
import time

import aiohttp
import msgspec
import psutil

from cp_ray.config import AppConfig
from cp_ray.demo import cpu
from cp_ray.demo.own_serve import own_serve
from cp_ray.demo.streams import Bodies, Sender

APP = "streams"
STARTING, HOLD_S, TIMEOUT_S = 32, 20.0, 1800.0
"""Requests without a first token at most; how long all are held open."""
OPENED_PER_S = 20.0
"""At least, or the first end before the last begin."""
REPLICAS, TOKEN_S = 2, 20.0
"""Seconds from token to token: 4,000 streams get 200 tokens a second."""


class OpenStreams(msgspec.Struct, frozen=True):
    """open_at_once: had their first token and not their last. restarted: kinds of process."""

    asked: int
    open_at_once: int
    whole: int
    failed: int
    first_failures: tuple[str, ...]
    opened_s: float
    seconds: float
    memory_mb: float
    restarted: tuple[str, ...]

    @property
    def faults(self) -> list[str]:
        """What must not be."""
        found = []
        if self.open_at_once < self.asked:
            found.append(f"only {self.open_at_once} of {self.asked} streams were open at a time")
        if self.failed:
            found.append(f"{self.failed} streams failed: {self.first_failures[:1]}")
        if self.restarted:
            found.append(f"restarted: {', '.join(self.restarted)}")
        return found


def open_streams(count: int) -> OpenStreams:
    """Open so many on a Ray of its own, OPENED_PER_S or more a second."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the proxy inherits it
    tokens = int((count / OPENED_PER_S + HOLD_S) / TOKEN_S) + 2
    config = AppConfig(
        engine="simulated",
        model="sim",
        replicas=REPLICAS,
        max_ongoing_requests=count,
        max_queued_requests=count,
        cache_tokens=count * 1024,
        prefill_tokens_per_s=1_000_000,
        decode_tokens_per_s=1 / TOKEN_S,
        cpus_per_replica=0.1,
    )
    from ray import serve

    from cp_ray.deployment import app

    with own_serve(8) as base:
        serve.run(app(config), name=APP)
        return asyncio.run(_open(base, count, tokens))


async def _open(base: str, count: int, tokens: int) -> OpenStreams:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        sender = Sender(http, base)
        bodies = Bodies(2, "known", 0, max_tokens=tokens)
        before, began = cpu.pids(), time.monotonic()
        done = 0

        async def one() -> bool:
            nonlocal done
            whole = await sender.send(bodies.next()) is not None
            done += 1
            return whole

        tasks: list[asyncio.Task[bool]] = []
        while sender.started < count and not sender.failed:
            if len(tasks) < min(count, sender.started + STARTING):
                tasks.append(asyncio.create_task(one()))
            await asyncio.sleep(0.002)
        most = sender.started - done
        opened_s = time.monotonic() - began
        await asyncio.sleep(HOLD_S)
        memory_mb = _memory_mb()
        most = min(most, sender.started - done)
        whole = sum(await asyncio.gather(*tasks))
    after = cpu.pids()
    return OpenStreams(
        asked=count,
        open_at_once=most,
        whole=whole,
        failed=len(sender.failed) + count - len(tasks),
        first_failures=tuple(sender.failed[:3]),
        opened_s=opened_s,
        seconds=time.monotonic() - began,
        memory_mb=memory_mb,
        restarted=tuple(kind for kind, those in before.items() if not those <= after[kind]),
    )


def _memory_mb() -> float:
    """Resident, of all processes of this Ray."""
    return sum(p.memory_info().rss for p in psutil.Process().children(recursive=True)) / 1e6
