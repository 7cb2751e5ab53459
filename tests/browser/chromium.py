"""A real browser, headless, over its own debugging protocol. Debian's `chromium` package has it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BINARY = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)
_KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}


class Browser:
    """One tab. Errors of the page are collected in `errors`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol."""
        self._number += 1
        self._connection.send(
            json.dumps({"id": self._number, "method": method, "params": parameters})
        )
        while True:
            message = json.loads(self._connection.recv(timeout=30))
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(message["params"]["exceptionDetails"]))
        entry = message.get("params", {}).get("entry", {})
        if message.get("method") == "Log.entryAdded" and entry["source"] in (
            "security",
            "violation",
        ):
            self.errors.append(entry["text"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """Value of an expression in the page; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """What a person reads there; empty when there is nothing, or it is hidden."""
        found = self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return str(found)

    def until(self, expression: str, seconds: float = 15.0) -> None:
        """Wait until an expression is true in the page."""
        deadline = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """A key on the keyboard, where the focus is."""
        code, text = _KEYS[key] if key in _KEYS else (ord(key.upper()), key)
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra
            )

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def scheme(self, name: str) -> None:
        """What the person prefers: dark or light."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def screenshot(self, path: Path) -> None:
        answer = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with one empty tab; it and its profile are gone at the end."""
    profile = tempfile.mkdtemp(prefix="cp-browser-")
    process = subprocess.Popen(
        [BINARY, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "HOME": profile},
    )
    try:
        port = _port(process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=20) as answer:
            tabs = json.load(answer)
        tab = next(tab for tab in tabs if tab["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], max_size=None, open_timeout=20) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        if process.stderr is not None:
            process.stderr.close()
        shutil.rmtree(profile, ignore_errors=True)


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r"DevTools listening on ws://[^:]+:(\d+)/", line):
            return int(match[1])
    raise AssertionError(f"{BINARY} ended before it listened")
