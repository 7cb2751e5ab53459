"""Spans of a request: what hangs together, what they say, and what they must not say."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cp_ray.config import AppConfig, parse_settings
from cp_ray.core.packed import packed
from cp_ray.core.types import PlanRequest, ReplicaId, RequestId, Step
from cp_ray.doctor import check_traces
from cp_ray.errors import ConfigError, EngineError
from cp_ray.index_actor.spans import told
from cp_ray.router.watch import Observer
from cp_ray.tracing import NOTHING, OpenTelemetryTracer, Tracer, check_tracing, new_tracer
from cp_ray.workers.engine import Chunk, EngineRequest, Sampling
from cp_ray.workers.spans import traced
from tests.shells.http_support import HTTP, Bench, running, wait_for

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SECRETS = ("amber", "marble", "which one", "acme", "talk-7")


class Recorded:
    """A tracer that keeps its spans here."""

    def __init__(self) -> None:
        self.kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.tracer = OpenTelemetryTracer(provider)

    def named(self, name: str) -> Any:
        (span,) = [s for s in self.kept.get_finished_spans() if s.name == f"cp_ray.{name}"]
        return span


def recorded_bench(**settings: Any) -> tuple[Bench, Recorded]:
    bench, recorded = Bench(**settings), Recorded()
    bench.service.observer = Observer(tracer=recorded.tracer)
    return bench, recorded


def post(bench: Bench, headers: dict[str, str] | None = None, **extra: Any) -> Any:
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": "which one?"}],
        "documents": ["amber " * 12, "marble " * 12],
        "max_tokens": 3,
    }
    given = {"traceparent": CLIENT, **(headers or {})}
    return HTTP.post(f"{bench.url}/v1/chat/completions", json=body | extra, headers=given)


def test_a_request_continues_its_clients_trace_into_index_and_replica() -> None:
    bench, recorded = recorded_bench()
    planned: list[PlanRequest] = []
    plan = bench.planner.plan

    async def listening(requests: list[PlanRequest]) -> list[Step] | None:
        planned.extend(requests)
        return await plan(requests)

    bench.planner.plan = listening  # type: ignore[method-assign]
    with running(bench):
        assert post(bench).status_code == 200
        wait_for(lambda: len(recorded.kept.get_finished_spans()) == 3)
    whole, asked, sent = (recorded.named(name) for name in ("request", "plan", "dispatch"))
    assert {f"{span.context.trace_id:032x}" for span in (whole, asked, sent)} == {TRACE}
    assert f"{whole.parent.span_id:016x}" == CLIENT.split("-")[2]
    assert asked.parent.span_id == sent.parent.span_id == whole.context.span_id
    assert planned[0].traceparent == f"00-{TRACE}-{asked.context.span_id:016x}-01"
    (to_replica,) = bench.dispatcher.sent
    assert to_replica.traceparent == f"00-{TRACE}-{sent.context.span_id:016x}-01"
    assert whole.start_time <= asked.start_time <= asked.end_time <= sent.start_time
    assert sent.end_time <= whole.end_time


def test_spans_say_what_was_planned_and_what_was_found() -> None:
    bench, recorded = recorded_bench()
    with running(bench):
        post(bench)
        recorded.kept.clear()
        post(bench)
        wait_for(lambda: len(recorded.kept.get_finished_spans()) == 3)
    whole, asked = recorded.named("request"), recorded.named("plan")
    told = dict(whole.attributes)
    assert told["cp_ray.replica"] == asked.attributes["cp_ray.planned_replica"] == "r0"
    assert told["cp_ray.request_id"] == asked.attributes["cp_ray.request_id"]
    assert told["cp_ray.cached_tokens"] == 52
    assert told["cp_ray.predicted_cached_tokens"] == 44, "not the question: no block of the index"
    assert told["cp_ray.outcome"] == "ok"
    assert told["cp_ray.reason"] == asked.attributes["cp_ray.reason"] == "holder"


def test_spans_hold_no_text_tenant_or_name_of_a_client() -> None:
    bench, recorded = recorded_bench(api_keys={"acme": "sesame"})
    with running(bench):
        key = {"authorization": "Bearer sesame"}
        assert post(bench, key, conversation="talk-7").status_code == 200
        assert post(bench, key, max_tokens=9000).status_code == 422
        wait_for(lambda: len(recorded.kept.get_finished_spans()) == 3)
    everything = "".join(span.to_json() for span in recorded.kept.get_finished_spans())
    assert [word for word in (*SECRETS, "sesame") if word in everything] == []


def test_an_answer_that_fails_in_the_middle_is_marked_with_the_kind_of_error() -> None:
    bench, recorded = recorded_bench()
    bench.engine.fault = (1, EngineError("amber marble", code="broken"))
    with running(bench):
        assert post(bench).status_code == 502
        wait_for(lambda: len(recorded.kept.get_finished_spans()) == 3)
    whole = recorded.named("request")
    assert whole.status.description == whole.attributes["error.type"] == "EngineError (broken)"
    assert whole.attributes["cp_ray.outcome"] == "failed"


def test_a_request_that_is_refused_after_its_start_ends_its_span() -> None:
    bench, recorded = recorded_bench()
    with running(bench):
        assert post(bench, documents=["amber " * 5000]).status_code == 400
    whole = recorded.named("request")
    assert whole.attributes["error.type"] == "InvalidRequest (context_length_exceeded)"


def test_a_wrong_traceparent_counts_as_none() -> None:
    bench, recorded = recorded_bench()
    with running(bench):
        assert post(bench, {"traceparent": "00-zz-1-01"}).status_code == 200
        wait_for(lambda: len(recorded.kept.get_finished_spans()) == 3)
    assert recorded.named("request").parent is None


def test_without_the_setting_nothing_is_recorded_or_carried() -> None:
    bench = Bench()
    with running(bench):
        assert post(bench).status_code == 200
    assert bench.dispatcher.sent[0].traceparent is None
    tracer = new_tracer(AppConfig(engine="simulated"), "app", "router")
    assert type(tracer) is Tracer
    assert tracer.start("request", CLIENT) is NOTHING


def test_a_replica_tells_prefill_from_decode() -> None:
    recorded = Recorded()
    request = EngineRequest(RequestId("q"), packed([1, 2, 3]), Sampling(), None, CLIENT)

    async def chunks() -> AsyncGenerator[Chunk, None]:
        yield Chunk("a", 1, 3, 2)
        await asyncio.sleep(0.05)
        yield Chunk("b", 2, 3, 2, "stop")

    async def run() -> list[Chunk]:
        stream = traced(recorded.tracer, ReplicaId("r"), request, chunks())
        return [chunk async for chunk in stream]

    assert [chunk.text for chunk in asyncio.run(run())] == ["a", "b"]
    prefill, decode = recorded.named("prefill"), recorded.named("decode")
    assert prefill.attributes["cp_ray.cached_tokens"] == 2
    assert decode.attributes["cp_ray.output_tokens"] == 2
    assert decode.end_time - decode.start_time > 40e6 > prefill.end_time - prefill.start_time


def test_an_engine_that_fails_before_its_first_token_has_a_failed_prefill_and_no_decode() -> None:
    recorded = Recorded()
    request = EngineRequest(RequestId("q"), packed([1, 2, 3]), Sampling(), None, CLIENT)

    async def chunks() -> AsyncGenerator[Chunk, None]:
        for fault in [EngineError("amber")]:
            raise fault
        yield Chunk("", 0, 3, 0)

    async def run() -> None:
        async for _ in traced(recorded.tracer, ReplicaId("r"), request, chunks()):
            pass

    with pytest.raises(EngineError):
        asyncio.run(run())
    (prefill,) = recorded.kept.get_finished_spans()
    assert prefill.status.description == "EngineError"


def test_the_index_tells_of_every_traced_request_of_a_window() -> None:
    recorded = Recorded()
    requests = [
        PlanRequest(RequestId(name), "h", 1, (), (), 1, traceparent=parent)  # type: ignore[arg-type]
        for name, parent in (("a", CLIENT), ("b", None))
    ]
    spans = [recorded.tracer.follow("index", request.traceparent) for request in requests]
    steps = [Step(r.request_id, (), None, "", (), 7, "load") for r in reversed(requests)]
    told(spans, requests, steps)
    (span,) = recorded.kept.get_finished_spans()
    assert span.attributes["cp_ray.request_id"] == "a"
    assert span.attributes["cp_ray.window_requests"] == 2
    assert span.attributes["cp_ray.predicted_cached_tokens"] == 7


def test_tracing_without_its_packages_says_what_to_install(monkeypatch: Any) -> None:
    found = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}")
        return found(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    check_tracing(AppConfig(engine="simulated"))
    config = AppConfig(engine="simulated", otlp_endpoint="http://localhost:4318/v1/traces")
    with pytest.raises(ConfigError, match=r"cp-ray\[otel\]"):
        check_tracing(config)
    assert "No module named" in check_traces(config).detail


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        parse_settings(["otlp_endpoint=localhost:4318"])
