"""A Store for one test, on the server of tests/shells/conftest.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cp_ray.errors import ConfigError
from cp_ray.store.client import Store

Use = Callable[[Store], Awaitable[None]]


def run(url: str, use: Use, app: str = "cp") -> None:
    async def main() -> None:
        store = await Store.connect(url, app=app)
        try:
            await use(store)
        finally:
            await store.close()
            await store.close()

    asyncio.run(main())


async def messages(*texts: bytes) -> AsyncIterator[bytes]:
    for text in texts:
        yield text


def refusal(url: str, app: str = "cp") -> ConfigError:
    async def nothing(_: Store) -> None:
        return None

    started = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        run(url, nothing, app)
    assert time.monotonic() - started < 4
    return caught.value
