"""Traces by OpenTelemetry: of requests, with their reads of the store, and of materializer passes.

They are sent where OpenTelemetry's own environment variables say so: ``OTEL_TRACES_EXPORTER=otlp``
or an endpoint (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``). Sampling,
headers, limits and the names of services are those variables', too. Without them, or without the
extra ``otel``, nothing is imported and nothing is measured.

Spans carry names, counts and times: no keys of entities, no values, no tokens.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paimon_features._version import __version__

LOGGER = logging.getLogger("paimon_features.core.process.traces")
Value = str | int | float | bool
Kind = Literal["server", "client", "internal"]
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@dataclass(frozen=True, slots=True)
class PartSpan:
    """A part of a span: its name, its times in ns since 1970, and what is known of it."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]


class Tracer:
    """Records spans that have ended, and sends them from a thread of its own. Thread safe."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("paimon_features", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(
        self,
        span: PartSpan,
        kind: Kind,
        *,
        traceparent: str = "",
        error: str | None = None,
        parts: tuple[PartSpan, ...] = (),
    ) -> None:
        """Record a span with its parts.

        ``traceparent`` is that header of a request (W3C Trace Context): the span belongs to the
        caller's trace, and is left out where the caller's is not sampled. ``error`` says what went
        wrong.
        """
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        parent = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        parent_span = self._start(span, kind, parent)
        context = set_span_in_context(parent_span)
        for part in parts:
            self._start(part, "client", context).end(part.end_ns)
        if error is not None:
            parent_span.set_status(Status(StatusCode.ERROR, error))
        parent_span.end(span.end_ns)

    def close(self) -> None:
        """Send what is left, and end the thread."""
        self._provider.shutdown()

    def _start(self, span: PartSpan, kind: Kind, context: Any) -> Any:
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(
            span.name,
            context=context,
            kind=SpanKind[kind.upper()],
            attributes=dict(span.attributes),
            start_time=span.start_ns,
        )


def open_tracer(service: str, environ: Mapping[str, str] = os.environ) -> Tracer | None:
    """Return a tracer if the environment configures one, else None.

    ``service`` is the name of this process, unless ``OTEL_SERVICE_NAME`` or
    ``OTEL_RESOURCE_ATTRIBUTES`` says another. Where the extra ``otel`` is missing, the log says so
    once: the variables may be meant for other programs.

    >>> open_tracer("serve", {})
    >>> open_tracer("serve", {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "x"})
    """
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return None
    if exporter != "otlp" and not any(environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        LOGGER.warning(
            "the environment names an endpoint for traces, but OpenTelemetry is not installed "
            "here: no traces are sent. pip install 'paimon-features[otel]', or unset %s",
            ", ".join(name for name in _ENDPOINTS if environ.get(name)) or "OTEL_TRACES_EXPORTER",
        )
        return None
    resource = Resource.create({"service.name": service, "service.version": __version__})
    if named := environ.get("OTEL_SERVICE_NAME"):
        resource = resource.merge(Resource({"service.name": named}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider)


def ended_now(name: str, took_s: float, attributes: Mapping[str, Value]) -> PartSpan:
    """Return a span that ends now and has taken ``took_s`` seconds."""
    end_ns = time.time_ns()
    return PartSpan(name, end_ns - int(took_s * 1e9), end_ns, attributes)
