"""A real Valkey for the tests of one file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from cp_ray.store.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One server; its tests may kill it, and `start` brings it back."""
    server = EmbeddedServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(valkey: EmbeddedServer) -> EmbeddedServer:
    """It runs, and is empty."""
    with redis.Redis.from_url(valkey.start()) as client:
        client.flushall()
    return valkey
