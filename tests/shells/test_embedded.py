"""The embedded server: the real valkey-server, killed for real."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from cp_ray.errors import ConfigError
from cp_ray.store.embedded import EmbeddedServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    embedded = EmbeddedServer(tmp_path / "valkey")
    yield embedded
    embedded.stop()


def _gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":  # dead; its reaper is the init of this machine
            return True
        time.sleep(0.02)
    return False


def _pid(server: EmbeddedServer) -> int:
    assert server.pid is not None
    return server.pid


def test_the_server_answers_and_stops(server: EmbeddedServer) -> None:
    url = server.start()
    with redis.Redis.from_url(url) as client:
        assert client.set("k", "v")
        assert client.get("k") == b"v"
    pid = _pid(server)
    server.stop()
    assert _gone(pid, 0.1)
    assert server.pid is None
    assert not server.alive()
    server.stop()


def test_without_the_password_nothing_is_told(server: EmbeddedServer) -> None:
    parts = urlsplit(server.start())
    assert parts.port is not None
    with socket.create_connection(("127.0.0.1", parts.port), timeout=5) as stranger:
        stranger.sendall(b"PING\r\n")
        assert stranger.recv(100).startswith(b"-NOAUTH")


def test_the_server_listens_on_loopback_only(server: EmbeddedServer) -> None:
    port = urlsplit(server.start()).port
    with redis.Redis.from_url(server.url) as client:
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port)}
    for address in addresses - {"127.0.0.1", "127.0.1.1", "::1"}:
        with socket.socket() as probe:
            probe.settimeout(1)
            assert probe.connect_ex((address, port)) != 0


def test_the_password_is_in_no_command_line_and_in_no_file_others_can_read(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    password = urlsplit(server.start()).password
    assert password
    assert len(password) >= 32
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not any(password.encode() in command for command in commands)
    environment = Path(f"/proc/{server.pid}/environ").read_bytes()
    assert password.encode() not in environment
    for path in (tmp_path / "valkey").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or password not in path.read_text()
    assert stat.S_IMODE((tmp_path / "valkey").stat().st_mode) == 0o700


def test_two_servers_have_two_passwords(server: EmbeddedServer, tmp_path: Path) -> None:
    other = EmbeddedServer(tmp_path / "other")
    try:
        assert urlsplit(server.start()).password != urlsplit(other.start()).password
    finally:
        other.stop()


def test_a_killed_server_comes_back_on_its_port_with_its_password(server: EmbeddedServer) -> None:
    url = server.start()
    first = _pid(server)
    os.kill(first, signal.SIGKILL)
    assert server.start() == url
    assert _pid(server) != first
    with redis.Redis.from_url(url) as client:
        assert client.ping()


def test_start_does_nothing_when_the_server_is_alive(server: EmbeddedServer) -> None:
    url = server.start()
    pid = _pid(server)
    assert server.start() == url
    assert server.pid == pid


def test_another_object_on_the_directory_takes_the_same_address(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    url = server.start()
    server.stop()
    later = EmbeddedServer(tmp_path / "valkey")
    try:
        assert later.start() == url
    finally:
        later.stop()


def test_nothing_survives_a_restart(server: EmbeddedServer, tmp_path: Path) -> None:
    with redis.Redis.from_url(server.start()) as client:
        client.set("k", "v")
    server.stop()
    with redis.Redis.from_url(server.start()) as client:
        assert client.get("k") is None
    assert not list((tmp_path / "valkey").glob("*.rdb"))


def test_a_second_server_on_the_directory_is_refused_with_advice(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    server.start()
    with pytest.raises(ConfigError, match="set redis_url"):
        EmbeddedServer(tmp_path / "valkey").start()
    assert server.alive()


def test_a_port_taken_meanwhile_is_replaced_by_another(server: EmbeddedServer) -> None:
    url = server.start()
    server.stop()
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", urlsplit(url).port))
        squatter.listen()
        moved = server.start()
    assert urlsplit(moved).port != urlsplit(url).port
    assert urlsplit(moved).password == urlsplit(url).password


def test_the_server_outlives_the_thread_that_asked_for_it(server: EmbeddedServer) -> None:
    asking = threading.Thread(target=server.start)
    asking.start()
    asking.join()
    time.sleep(0.2)
    with redis.Redis.from_url(server.url) as client:
        assert client.ping()


def test_a_full_store_refuses_and_forgets_nothing(server: EmbeddedServer) -> None:
    with redis.Redis.from_url(server.start()) as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(512 << 20)}
        client.set("first", "v")
        client.config_set("maxmemory", "3mb")
        with pytest.raises(redis.OutOfMemoryError):
            for number in range(1000):
                client.set(f"k{number}", b"x" * 100_000)
        assert client.get("first") == b"v"


PARENT = """
import sys, time
from pathlib import Path
from cp_ray.store.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
print(server.start(), server.pid, flush=True)
if sys.argv[2] == "wait":
    time.sleep(60)
"""


def _parent(directory: Path, then: str) -> tuple[subprocess.Popen[str], str, int]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(directory), then], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url, pid = process.stdout.readline().split()
    return process, url, int(pid)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_dies_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    parent, url, pid = _parent(tmp_path, "wait")
    parent.send_signal(how)
    parent.wait(10)
    assert _gone(pid)
    again = EmbeddedServer(tmp_path)
    try:
        assert again.start() == url
    finally:
        again.stop()


def test_the_server_goes_when_its_parent_ends(tmp_path: Path) -> None:
    parent, _, pid = _parent(tmp_path, "end")
    assert parent.wait(10) == 0
    assert _gone(pid)
