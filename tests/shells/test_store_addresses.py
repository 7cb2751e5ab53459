"""Which servers Store takes, and what it says of those that it does not: rights, TLS, no Redis."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from cp_ray.errors import ConfigError
from cp_ray.store.client import START, Store
from cp_ray.store.embedded import EmbeddedServer
from tests.shells.store_support import messages, refusal, run

TLS_REQUEST = (
    "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
    "-addext subjectAltName=IP:127.0.0.1"
)


def test_an_application_name_that_could_reach_other_keys_is_refused(server: EmbeddedServer) -> None:
    assert "application name" in refusal(server.url, app="a:b").message


def test_a_wrong_or_missing_password_is_refused_without_showing_any(
    server: EmbeddedServer,
) -> None:
    port = urlsplit(server.url).port
    for url in (f"redis://:secret-guess@127.0.0.1:{port}", f"redis://127.0.0.1:{port}"):
        error = refusal(url)
        assert "refuses the password" in error.message
        assert "secret-guess" not in error.message
        assert error.param == "redis_url"


def test_an_acl_user_needs_only_the_rights_that_are_named(server: EmbeddedServer) -> None:
    port = urlsplit(server.url).port
    rules = ["reset", "on", ">pw", "~cp:cp:*", "+@read", "+@write", "+@connection"]
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "cp", *rules)
        admin.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", "~cp:cp:*", "+get")

    async def use(store: Store) -> None:
        await store.put_record("c", b"1", 60)
        assert await store.get_record("c") == b"1"
        await store.append_report(b"r")
        assert len(await store.read_reports(START, 50)) == 1
        journal = await store.journal()
        await journal.append(b"m")
        await journal.snapshot(messages(b"M"))
        assert await journal.keep()
        assert [message async for message in (await store.journal()).load()] == [b"M"]

    run(f"redis://cp:pw@127.0.0.1:{port}", use)
    assert "lacks rights" in refusal(f"redis://poor:pw@127.0.0.1:{port}").message
    assert "lacks rights" in refusal(f"redis://cp:pw@127.0.0.1:{port}", app="other").message
    assert "refuses the password" in refusal(f"redis://cp:no@127.0.0.1:{port}").message


def test_an_address_where_nothing_listens_is_refused_with_advice() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert "cannot be reached" in refusal(f"redis://127.0.0.1:{port}").message


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no Redis"), (b"", "no answer")],
    ids=["another protocol", "silence"],
)
def test_what_is_no_redis_is_refused(answer: bytes, words: str) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(answer)
            await reader.read()
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        started = time.monotonic()
        with pytest.raises(ConfigError, match=words):
            await Store.connect(f"redis://127.0.0.1:{port}")
        assert time.monotonic() - started < 4
        listener.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "url", ["", "localhost:6379", "http://localhost", "redis://:p@w#d@h:1", "redis://h:port"]
)
def test_what_is_no_redis_url_is_refused(url: str) -> None:
    assert "redis_url" in refusal(url).message


def test_tls_is_checked_and_used(server: EmbeddedServer, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, to make a certificate, is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [openssl, *TLS_REQUEST.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    inner = urlsplit(server.url)

    async def main() -> None:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            theirs, ours = await asyncio.open_connection("127.0.0.1", inner.port)

            async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
                sink.close()

            await asyncio.gather(pump(reader, ours), pump(theirs, writer), return_exceptions=True)

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        listener = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
        port = listener.sockets[0].getsockname()[1]
        url = f"rediss://:{inner.password}@127.0.0.1:{port}"
        store = await Store.connect(f"{url}?ssl_ca_certs={certificate}")
        await store.put_record("c", b"tls", 60)
        assert await store.get_record("c") == b"tls"
        await store.close()
        with pytest.raises(ConfigError, match="certificate"):
            await Store.connect(url)
        with pytest.raises(ConfigError):
            await Store.connect(f"redis://127.0.0.1:{port}")
        listener.close()

    asyncio.run(main())
