"""A request is a span with its read of the store, in the trace of its caller."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paimon_features.core.process.traces import open_tracer
from tests.serving.http.conftest import Client

pytest.importorskip("opentelemetry.sdk", reason="pip install 'paimon-features[otel]'")
from tests.otlp_receiver import Receiver

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_requests_are_spans_with_their_reads_of_the_store(
    make_client: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    client = make_client(tracer=open_tracer("paimon-features-serve"))
    wanted = {"features": ["clicks:sum_n_1h"], "entities": {"user": [1, 2]}}
    assert client.read(wanted, headers={"traceparent": CALLER}).status == 200
    assert client.read({"features": ["clicks:nothing"], "entities": {"user": [1]}}).status == 404
    assert client.get("/health/live").status == 200
    client.close()
    receiver.close()

    read, missing, health = sorted(
        (one for one in receiver.spans if one.name != "MGET"),
        key=lambda one: one.end_time_unix_nano,
    )
    # the states of the view first, once, and its records
    stores = [one for one in receiver.spans if one.name == "MGET"]
    assert len(stores) == 2
    assert read.name == missing.name == "POST /get-online-features"
    assert health.name == "GET /health/live"
    attributes = {a.key: a.value for a in read.attributes}
    assert attributes["http.response.status_code"].int_value == 200
    assert attributes["paimon_features.rows"].int_value == 2
    assert read.trace_id.hex() == CALLER.split("-")[1]
    assert {(one.trace_id, one.parent_span_id) for one in stores} == {(read.trace_id, read.span_id)}
    failed = {a.key: a.value for a in missing.attributes}
    assert failed["error.type"].string_value == "unknown_name"
    assert missing.status.code == 0
    # neither keys nor values of an entity
    assert b"user" not in b"".join(request.SerializeToString() for request in receiver.requests)
