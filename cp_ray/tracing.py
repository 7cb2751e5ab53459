"""Traces: what one request did in Router, index and replica, as OpenTelemetry spans.

Off unless `otlp_endpoint` is set, and then it costs nothing. Spans carry ids, counts and reasons:
never a text, a tenant, or a name that a client gave. A request's spans in other processes hang
together by W3C traceparents, which travel in `PlanRequest` and `EngineRequest`. Another thread
sends them; a collector that is slow or gone holds up no request, its spans are lost.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from cp_ray.config import AppConfig
from cp_ray.errors import ConfigError, CpRayError

Kind = Literal["server", "client", "internal"]
Value = str | int | float | bool | None
PREFIX = "cp_ray."
_SEND_EVERY_MS = 1000
_CLOSE_S = 3.0
_HEADER = "traceparent"


class Span:
    """A span that is not recorded; those that are have the same methods."""

    traceparent: str | None = None
    """What another process needs to continue here."""

    def set(self, **attributes: Value) -> None:
        """Name facts; None is left out."""

    def fail(self, error: BaseException) -> None:
        """Mark as failed, by the error's kind: its message may quote a request."""

    def end(self) -> None:
        """Close it; a second time does nothing."""


NOTHING = Span()


class Tracer:
    """The spans of one process; this one records none."""

    def start(self, name: str, parent: str | None, kind: Kind = "internal") -> Span:  # noqa: ARG002
        """Open a span below `parent`, a traceparent; without a valid one it begins a trace."""
        return NOTHING

    def follow(self, name: str, parent: str | None, kind: Kind = "server") -> Span:
        """Open a span of a trace that another process began, if it did."""
        return self.start(name, parent, kind) if parent is not None else NOTHING

    async def close(self) -> None:
        """Send what is left."""


class _OpenSpan(Span):
    def __init__(self, span: Any, traceparent: str | None) -> None:
        self._span = span
        self.traceparent = traceparent

    def set(self, **attributes: Value) -> None:
        for name, value in attributes.items():
            if value is not None and self._span.is_recording():
                self._span.set_attribute(PREFIX + name, value)

    def fail(self, error: BaseException) -> None:
        from opentelemetry.trace import Status, StatusCode

        if not self._span.is_recording():
            return
        kind = type(error).__name__
        if isinstance(error, CpRayError) and error.code:
            kind = f"{kind} ({error.code})"
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, kind))

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()


class OpenTelemetryTracer(Tracer):
    """Records into a `TracerProvider` of OpenTelemetry's SDK, which it owns."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("cp_ray")
        self._kinds = {
            "server": SpanKind.SERVER,
            "client": SpanKind.CLIENT,
            "internal": SpanKind.INTERNAL,
        }
        self._context = TraceContextTextMapPropagator()

    def start(self, name: str, parent: str | None, kind: Kind = "internal") -> Span:
        """Open a span of the SDK's."""
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        nowhere = Context()  # whatever else traces in this process is not ours
        carried = {_HEADER: parent} if parent is not None else {}
        context = self._context.extract(carried, nowhere)
        span = self._tracer.start_span(PREFIX + name, context, kind=self._kinds[kind])
        out: dict[str, str] = {}
        self._context.inject(out, set_span_in_context(span, nowhere))
        return _OpenSpan(span, out.get(_HEADER))

    async def close(self) -> None:
        """Send what is left, for so long as a replica that stops may wait."""
        sending = asyncio.to_thread(self._provider.shutdown)
        await asyncio.wait({asyncio.ensure_future(sending)}, timeout=_CLOSE_S)


def check_tracing(config: AppConfig) -> None:
    """Raise ConfigError when spans are wanted and cannot be made."""
    if config.otlp_endpoint is None:
        return
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"otlp_endpoint is set, and OpenTelemetry is not installed here ({error}): "
            "pip install 'cp-ray[otel]' on every host, or leave otlp_endpoint out",
            param="otlp_endpoint",
        ) from error


def new_tracer(config: AppConfig, app: str, part: str, instance: str = "") -> Tracer:
    """The tracer that the settings ask for.

    part, instance: "router", "index" or "replica", and which of them. Raises ConfigError when
    OpenTelemetry is not installed.
    """
    if config.otlp_endpoint is None:
        return Tracer()
    check_tracing(config)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    facts = {"service.name": "cp_ray", f"{PREFIX}app": app, f"{PREFIX}part": part}
    if instance:
        facts["service.instance.id"] = instance
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(config.trace_share)),
        resource=Resource.create(facts),
        shutdown_on_exit=True,
    )
    exporter = OTLPSpanExporter(endpoint=config.otlp_endpoint)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_SEND_EVERY_MS))
    return OpenTelemetryTracer(provider)
