"""A local server that speaks just enough of OpenAI's stream to fail on purpose."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], list[dict[str, Any] | str] | int]
"""Request body -> chunks to stream (a string is sent as it is), or an HTTP error status."""


def chunks_of(text: str, cached: int = 0) -> list[dict[str, Any] | str]:
    def chunk(content: str, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
        return {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"} | {
            "choices": [choice]
        }

    usage: dict[str, Any] = chunk("", None) | {"choices": []}
    usage["usage"] = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return [chunk(text, None), chunk("", "stop"), usage, "[DONE]"]


@contextlib.contextmanager
def stub(reply: Reply) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield base URL and the list of request bodies that came."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen.append(body)
            answer = reply(body)
            status = answer if isinstance(answer, int) else 200
            self.send_response(status)
            kind = "application/json" if status != 200 else "text/event-stream"
            self.send_header("content-type", kind)
            self.send_header("connection", "close")
            self.end_headers()
            if isinstance(answer, int):
                self.wfile.write(b'{"error":{"message":"no replica","type":"t"}}')
                return
            for part in answer:
                data = part if isinstance(part, str) else json.dumps(part)
                self.wfile.write(f"data: {data}\n\n".encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
