"""A real collector's end gets one trace from three processes: Router, index and replica."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from cp_ray.config import AppConfig
from tests.e2e.support import TOPICS, application, ask, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class Collector(ThreadingHTTPServer):
    """OTLP over HTTP, as a collector takes it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Take)
        self.bodies: list[bytes] = []
        self.endpoint = f"http://127.0.0.1:{self.server_port}/v1/traces"

    def spans(self, trace: str) -> dict[str, tuple[Any, dict[str, Any], str]]:
        """By name: a span, its attributes, and the part of the application that sent it."""
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp

        found = {}
        for body in list(self.bodies):
            for resource in otlp.ExportTraceServiceRequest.FromString(body).resource_spans:
                part = facts(resource.resource.attributes)["cp_ray.part"]
                for span in (one for scope in resource.scope_spans for one in scope.spans):
                    if span.trace_id.hex() == trace:
                        assert span.name not in found
                        found[span.name] = (span, facts(span.attributes), part)
        return found


class Take(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        packed = self.headers.get("content-encoding") == "gzip"
        self.server.bodies.append(gzip.decompress(body) if packed else body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def facts(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_one_trace_from_router_index_and_replica(serve_url: str, collector: Collector) -> None:
    config = AppConfig(
        engine="simulated",
        replicas=2,
        otlp_endpoint=collector.endpoint,
        api_keys={"acme": SecretStr("sesame")},
    )
    key = {"authorization": "Bearer sesame"}
    with application(serve_url, "traced", config) as base:
        first, second = TOPICS[0], TOPICS[1]
        ask(base, [first, second], "which?", headers=key)
        answer = ask(base, [second, first], "which?", headers={**key, "traceparent": CLIENT})
        until(lambda: len(collector.spans(TRACE)) == 6, 30)
    told, found = answer["cp_ray"], collector.spans(TRACE)
    parts = {name.removeprefix("cp_ray."): part for name, (_, _, part) in found.items()}
    assert parts == {
        "request": "router",
        "plan": "router",
        "dispatch": "router",
        "index": "index",
        "prefill": "replica",
        "decode": "replica",
    }
    spans = {name.removeprefix("cp_ray."): span for name, (span, _, _) in found.items()}
    parents = {"plan": "request", "index": "plan", "dispatch": "request", "prefill": "dispatch"}
    for child, parent in parents.items():
        assert spans[child].parent_span_id == spans[parent].span_id, child
    assert spans["request"].parent_span_id.hex() == CLIENT.split("-")[2]
    assert all(
        attributes["cp_ray.request_id"] == told["request_id"] for _, attributes, _ in found.values()
    )
    whole, planned, prefill = (
        found[f"cp_ray.{name}"][1] for name in ("request", "index", "prefill")
    )
    assert whole["cp_ray.replica"] == planned["cp_ray.planned_replica"] == prefill["cp_ray.replica"]
    assert planned["cp_ray.predicted_cached_tokens"] == told["predicted_cached_tokens"] > 100
    assert prefill["cp_ray.cached_tokens"] == whole["cp_ray.cached_tokens"] == told["cached_tokens"]
    assert planned["cp_ray.reordered"] is True
    everything = b"".join(collector.bodies)
    assert [
        word for word in (b"alpha", b"bravo", b"which?", b"acme", b"sesame") if word in everything
    ] == []
