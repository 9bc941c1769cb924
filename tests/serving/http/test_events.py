"""Requests with an event: one row of the service's source instead of entity keys."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import msgspec
import pyarrow as pa
import pytest

from paimon_features.core.errors import RequestError
from paimon_features.core.types.schema import Date, Decimal, Float64, Int64, Timestamp
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
)
from paimon_features.definitions.aggregates import Count, Sum
from paimon_features.online.store.memory_store import MemoryStore
from paimon_features.serving.client.replies import reply_of
from paimon_features.serving.client.requests import ClientRequest
from tests.tile_lake import TileLake

NOW_MS = 1_300_000_000_000
PAYMENTS = EventSource(
    "payments",
    schema={
        "card": Int64, "amount": Float64, "at": Int64, "born": Date, "price": Decimal(10, 2),
        "seen": Timestamp,
    },
    event_time="at",
)  # fmt: skip
VIEW = FeatureView(
    "by_card",
    source=PAYMENTS,
    entity=Entity("card", keys={"card": Int64}),
    tile="1ms",
    where="amount > 0",
    features=[Count(windows=["1h"]), Sum("amount", windows=["1h"], own_event=False, name="before")],
)
RATIO = Interaction("ratio", "amount / by_card:before_1h", request=PAYMENTS.as_request())
OLD = Interaction("priced", "CAST(price AS float64) + amount", request=PAYMENTS.as_request())
FRAUD = FeatureService("fraud_v1", [VIEW, RATIO], request=PAYMENTS)
PRICED = FeatureService("priced_v1", ["by_card:count_1h", OLD], request=PAYMENTS)
EVENT = {"card": 7, "amount": 6.0, "at": NOW_MS}
READ = {"feature_service": "fraud_v1", "event": EVENT}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    store = MemoryStore()
    lake = TileLake(tmp_path_factory.mktemp("lake"), VIEW)
    lake.commit([{"card": 7, "amount": 2.0, "at": NOW_MS - 1_000}, {**EVENT, "amount": 50.0}])
    lake.materializer(store).run_once()
    return store


@pytest.fixture
def client(store: MemoryStore, make_client: Callable[..., Any]) -> Any:
    definitions = Definitions.of([VIEW, RATIO, OLD, FRAUD, PRICED])
    return make_client(store=store, definitions=definitions)


def test_an_event_is_read_as_of_its_time_and_counted(client: Any) -> None:
    document = client.read(READ).json
    assert document["metadata"]["feature_names"] == ["card", "count_1h", "before_1h", "ratio"]
    assert [result["values"] for result in document["results"]] == [[7], [2], [2.0], [3.0]]
    assert document["metadata"]["as_of_ms"] == NOW_MS
    assert document["metadata"]["own_event"] == {"by_card": "counted"}
    refused = client.read({**READ, "event": {**EVENT, "amount": -1.0}}).json
    assert refused["metadata"]["own_event"] == {"by_card": "not a member"}
    assert refused["results"][1]["values"] == [1]


def test_message_pack_and_arrow_carry_events_too(client: Any) -> None:
    headers = {"content-type": "application/msgpack", "accept": "application/msgpack"}
    reply = client.read(msgspec.msgpack.encode(READ), headers=headers)
    document = msgspec.msgpack.decode(reply.body)
    assert document["values"] == [[7], [2], [2.0], [3.0]]
    assert document["metadata"]["own_event"] == {"by_card": "counted"}
    sink = io.BytesIO()
    batch = pa.RecordBatch.from_pylist([EVENT])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    arrow = "application/vnd.apache.arrow.stream"
    reply = client.read(
        sink.getvalue(), query="feature_service=fraud_v1", headers={"content-type": arrow}
    )
    assert reply.headers["content-type"] == arrow, reply.body
    table = pa.ipc.open_stream(reply.body).read_all()
    assert table.column("count_1h").to_pylist() == [2]
    metadata = json.loads(table.schema.metadata[b"paimon_features"])
    assert metadata["own_event"] == {"by_card": "counted"}


def test_dates_times_and_decimals_are_texts(client: Any) -> None:
    event = {
        **EVENT, "price": "12.50", "born": "1990-02-03", "seen": "2011-03-13T07:06:40",
    }  # fmt: skip
    document = client.read({"feature_service": "priced_v1", "event": event}).json
    assert document["results"][2]["values"] == [18.5]
    wrong = client.read({"feature_service": "priced_v1", "event": {**event, "born": "3.2.1990"}})
    assert "event column 'born': '3.2.1990' is not a valid Date" in wrong.problem[2]


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        ({**READ, "entities": {"card": [7]}}, 422, "both 'event' and 'entities'"),
        ({**READ, "as_of": NOW_MS}, 422, "both 'event' and 'as_of'"),
        ({**READ, "request": {"amount": 1.0}}, 422, "both 'event' and 'request'"),
        ({"features": ["by_card:count_1h"], "event": EVENT}, 422, "both 'event' and 'features'"),
        ({"feature_service": "fraud_v1", "entities": {"card": [7]}}, 422, "read with 'event'"),
        ({"feature_service": "fraud_v1"}, 422, "'entities' is empty"),
        ({**READ, "event": {}}, 422, "the event has no column 'card'"),
        ({**READ, "event": {**EVENT, "card": None, "x": 1}}, 422, "unknown column 'x'"),
        ({**READ, "event": {**EVENT, "amount": "6"}}, 422, "event column 'amount'"),
        ({**READ, "event": [EVENT]}, 422, "Expected `object`"),
        ({**READ, "event": {**EVENT, "card": {"a": 1}}}, 422, "event column 'card'"),
        ({**READ, "event": {**EVENT, "at": NOW_MS - 10**9}}, 422, "read it from the lake"),
        ({**READ, "event": {str(n): n for n in range(3_000)}}, 413, "event columns"),
        ({**READ, "evnet": EVENT}, 422, "did you mean 'event'"),
    ],
)
def test_odd_requests_are_refused(
    client: Any, request_: dict[str, Any], status: int, message: str
) -> None:
    got_status, _, detail = client.read(request_).problem
    assert got_status == status
    assert message in detail


def test_repeated_columns_of_an_event_are_refused(client: Any) -> None:
    body = json.dumps(READ).replace('"card": 7', '"card": 7, "card": 8').encode()
    assert client.read(body).status in (400, 422)


def test_events_of_features_that_are_read_by_keys_are_refused(
    client: Any, make_client: Callable[..., Any]
) -> None:
    other = make_client()
    detail = other.read({"feature_service": "reading_v1", "event": {"user": 1}}).problem[2]
    assert "'event' is for a feature service with request=" in detail


def test_an_event_is_explained(client: Any) -> None:
    fields = {"view": "by_card", "service": "fraud_v1", "event": json.dumps(EVENT)}
    reply = client.get("/explain", query=urlencode(fields))
    assert reply.status == 200, reply.json
    assert reply.json["own_event"]["state"] == "counted"
    assert [f["value"] for f in reply.json["features"]] == [2, 2.0]
    assert [f["own_event"] for f in reply.json["features"]] == [{"alone": 1}, None]
    for changed, message in (
        ({"entity": "card=7"}, "without entity and as_of"),
        ({"service": "by_card"}, "unknown service 'by_card'"),
        ({"event": "[1]"}, "expected one JSON object"),
        ({"event": '{"card": 1, "card": 2}'}, "not a JSON object"),
        ({"event": "{}"}, "no column"),
        ({"view": "other"}, "'other' of service 'fraud_v1'"),
    ):
        reply = client.get("/explain", query=urlencode({**fields, **changed}))
        assert 400 <= reply.status < 500
        assert message in json.dumps(reply.json), reply.json


def test_a_model_of_the_service_is_asked_with_an_event(client: Any) -> None:
    pytest.importorskip("onnxruntime", reason="the runtime of models")
    from tests.serving.http.test_predict import models
    from tests.serving.prediction.networks import linear, number, sigmoid, state

    definitions = client.app.state.definitions.definitions
    outputs = {str(output): output for output in definitions.outputs(FRAUD.items())}
    digests = {
        counted: definitions.value_definition(outputs["by_card:count_1h"], counted)
        for counted in ("payments", None)
    }

    def of(counted: str | None) -> Any:
        inputs = [
            replace(number("by_card:count_1h", kind="int64"), definition=digests[counted]),
            number("ratio", kind="float64"),
        ]
        made = linear([0.5, 0.25], inputs, key=("card", "int64"))
        signature = replace(made.manifest.signature, service="fraud_v1")
        return replace(made, manifest=replace(made.manifest, signature=signature))

    def predict(document: object) -> Any:
        return client.request("POST", "/predict/churn", json.dumps(document).encode())

    model = of("payments")
    client.app.replace_models(models((model, state(model))))
    document = predict({"event": EVENT}).json
    assert document["predictions"] == pytest.approx([sigmoid(0.5 * 2 + 0.25 * 3)])
    assert document["own_event"] == {"by_card": "counted"}
    assert document["as_of_ms"] == NOW_MS
    assert "read with 'event'" in predict({"entities": {"card": [7]}}).problem[2]
    assert "both 'event' and 'entities'" in predict({"event": EVENT, "entities": {}}).problem[2]
    # a version that was trained without events reads other numbers
    model = of(None)
    client.app.replace_models(models((model, state(model))))
    refused = predict({"event": EVENT})
    assert refused.status == 503
    assert "is defined otherwise than when it was trained" in refused.json["detail"]


def test_clients_send_events(client: Any) -> None:
    body = ClientRequest.of("fraud_v1", None, None, None, False, EVENT).body()
    reply = reply_of(client.read(body).json, [], None)
    assert reply.columns == {"card": [7], "count_1h": [2], "before_1h": [2.0], "ratio": [3.0]}
    assert reply.statuses.keys() == {"count_1h", "before_1h", "ratio"}
    assert reply.own_event == {"by_card": "counted"}
    with pytest.raises(RequestError, match="either entities= or event="):
        ClientRequest.of("fraud_v1", {"card": [7]}, None, None, False, EVENT)
    with pytest.raises(RequestError, match="an event has the time"):
        ClientRequest.of("fraud_v1", None, NOW_MS, None, False, EVENT)
