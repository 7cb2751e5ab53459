"""The floor below any answer that another process gives: a byte there and back, under the load.

Where CPUs are busy, who wakes up waits for one. Two processes that only exchange a byte meet the
same wait twice, without any work; what a plan takes is to be read beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

EVERY_S = 0.05
_CHILD = """
import socket, sys
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen(1)
print(server.getsockname()[1], flush=True)
line, _ = server.accept()
line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := line.recv(1):
    line.sendall(data)
"""


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[list[float]]:
    """Milliseconds of each round trip so far, one every EVERY_S."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CHILD, stdout=asyncio.subprocess.PIPE
    )
    taken: list[float] = []
    try:
        port = int(await child.stdout.readline()) if child.stdout is not None else 0
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        task = asyncio.create_task(_probe(reader, writer, taken))
        yield taken
        task.cancel()
        writer.close()
    finally:
        child.kill()
        await child.wait()


async def _probe(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, taken: list[float]
) -> None:
    while True:
        began = time.perf_counter()
        writer.write(b"x")
        await reader.readexactly(1)
        taken.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(EVERY_S)
