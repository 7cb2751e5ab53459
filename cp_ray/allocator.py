"""What a process has freed goes back to the system, so that its size follows what it holds.

glibc keeps freed memory in an arena for each of up to eight times as many threads as there are
cores. A Router of 45 MB in use had 135 MB of that after five minutes of bursts, and it only grew
(benchmarks/LOG.md). Elsewhere than on glibc nothing is done.
"""

from __future__ import annotations

import asyncio
import ctypes
from contextlib import suppress

ARENAS = 2
TRIM_S = 30.0
_M_ARENA_MAX = -8
"""From glibc's malloc.h."""


def _glibc() -> ctypes.CDLL | None:
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        _ = library.mallopt, library.malloc_trim
        return library
    return None


async def keep_trimmed(every_s: float = TRIM_S) -> None:
    """Few arenas from now on, and what is free in them given back now and then; for ever."""
    library = _glibc()
    if library is None:
        return
    library.mallopt(_M_ARENA_MAX, ARENAS)
    while True:
        await asyncio.sleep(every_s)
        await asyncio.to_thread(library.malloc_trim, 0)  # some ms; the interpreter's lock is free
