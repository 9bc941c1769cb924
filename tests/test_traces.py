"""Traces by OpenTelemetry, sent to a real receiver over HTTP: of requests, of passes."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator

import pytest

from paimon_features.core.process.traces import PartSpan, ended_now, open_tracer

pytest.importorskip("opentelemetry.sdk", reason="pip install 'paimon-features[otel]'")
from tests.otlp_receiver import Receiver

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    yield made
    made.close()


def test_a_span_has_its_parts_and_the_trace_of_its_caller(receiver: Receiver) -> None:
    tracer = open_tracer("paimon-features-serve")
    assert tracer is not None
    now_ns = time.time_ns()
    part = PartSpan("MGET", now_ns - 2_000, now_ns - 1_000, {"paimon_features.keys": 7})
    span = PartSpan("POST /x", now_ns - 5_000, now_ns, {"http.response.status_code": 503})
    caller = f"00-{TRACE_ID}-{SPAN_ID}-01"
    tracer.record(span, "server", traceparent=caller, error="overloaded", parts=(part,))
    tracer.close()

    assert receiver.services() == {"paimon-features-serve"}
    found = {one.name: one for one in receiver.spans}
    request, read = found["POST /x"], found["MGET"]
    assert request.trace_id.hex() == read.trace_id.hex() == TRACE_ID
    assert request.parent_span_id.hex() == SPAN_ID
    assert read.parent_span_id == request.span_id
    assert (request.start_time_unix_nano, request.end_time_unix_nano) == (now_ns - 5_000, now_ns)
    assert (read.start_time_unix_nano, read.end_time_unix_nano) == (now_ns - 2_000, now_ns - 1_000)
    assert request.status.message == "overloaded"
    assert {a.key: a.value.int_value for a in read.attributes} == {"paimon_features.keys": 7}


@pytest.mark.parametrize("caller", ["", "00-xyz", f"00-{TRACE_ID}-{SPAN_ID}-00", "ä" * 1_000])
def test_a_caller_without_a_valid_or_sampled_trace(receiver: Receiver, caller: str) -> None:
    tracer = open_tracer("serve")
    assert tracer is not None
    tracer.record(ended_now("a", 0.5, {}), "internal", traceparent=caller)
    tracer.close()
    if caller.endswith("-00"):  # the caller's trace is not recorded, so neither is this part of it
        assert receiver.spans == []
    else:
        (span,) = receiver.spans
        assert span.parent_span_id == b""
        assert span.end_time_unix_nano - span.start_time_unix_nano == 500_000_000


def test_the_environment_names_the_service(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop-features")
    tracer = open_tracer("serve")
    assert tracer is not None
    tracer.record(ended_now("a", 0.0, {}), "internal")
    tracer.close()
    assert receiver.services() == {"shop-features"}


def test_without_the_extra_the_log_says_what_to_install(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.sdk")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with caplog.at_level(logging.WARNING):
        assert open_tracer("serve") is None
    assert (
        "pip install 'paimon-features[otel]', or unset OTEL_EXPORTER_OTLP_ENDPOINT" in caplog.text
    )
