"""Freed memory goes back to the system."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

BURST = """
import asyncio, threading
import psutil
from cp_ray.allocator import keep_trimmed

def size():
    return psutil.Process().memory_info().rss / 1e6

def burst(kept):
    # Pieces below the size that is mapped on its own, and one kept behind many that are freed.
    pieces = [bytearray(50_000) for _ in range(1000)]
    kept.append(pieces[-1])

async def main():
    trimming = asyncio.create_task(keep_trimmed(EVERY_S))
    await asyncio.sleep(0)
    before, kept = size(), []
    for _ in range(3):
        threads = [threading.Thread(target=burst, args=(kept,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    await asyncio.sleep(1.0)
    print(size() - before)
    trimming.cancel()

asyncio.run(main())
"""


def grown_mb(every_s: float) -> float:
    code = BURST.replace("EVERY_S", str(every_s))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout)


def test_what_a_burst_has_freed_is_given_back() -> None:
    if sys.platform != "linux":
        pytest.skip("glibc's allocator")
    kept, given_back = grown_mb(1000.0), grown_mb(0.2)
    assert given_back < 10, "twelve pieces of 50 kB are held"
    assert given_back < kept / 3, (given_back, kept)


def test_it_goes_on_until_it_is_cancelled() -> None:
    from cp_ray.allocator import keep_trimmed

    async def main() -> bool:
        task = asyncio.create_task(keep_trimmed(0.01))
        await asyncio.sleep(0.1)
        running = not task.done()
        task.cancel()
        return running

    assert asyncio.run(main()) or sys.platform != "linux"
