"""JSON, MessagePack and Arrow in and out; Arrow streams that mean no good."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from paimon_features.core.windows import DAY_MS
from paimon_features.serving.http.bodies.formats import Format, format_of_reply
from paimon_features.serving.http.http_errors import RequestRejected
from paimon_features.testing.sizes import seeds

JSON, PACK, ARROW = (format_.value for format_ in Format)
READ = {"feature_service": "reading_v1", "entities": {"user": [1, 99]}}


def arrow(columns: dict[str, Any], metadata: dict[str, str] | None = None, **options: Any) -> bytes:
    table = pa.table(columns).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def send(client: Any, body: bytes, kind: str = ARROW, **options: Any) -> Any:
    headers = {"content-type": kind, **options.pop("headers", {})}
    return client.read(body, headers=headers, **options)


def test_message_pack_is_answered_in_message_pack(client: Any) -> None:
    answer = send(client, msgspec.msgpack.encode(READ), PACK)
    assert (answer.status, answer.headers["content-type"]) == (200, PACK)
    document = msgspec.msgpack.decode(answer.body)
    assert document["metadata"]["feature_names"][:2] == ["user", "sum_n_1h"]
    assert document["values"][:2] == [[1, 99], [5, None]]


def test_an_arrow_stream_is_answered_with_an_arrow_stream(client: Any) -> None:
    answer = send(client, arrow({"user": [1, 99]}), query="feature_service=reading_v1")
    assert (answer.status, answer.headers["content-type"]) == (200, ARROW)
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table.column("user").to_pylist() == [1, 99]
    assert table.column("sum_n_1d").to_pylist() == [12, None]


def test_arrow_says_what_it_asks_for_in_metadata_or_the_query(client: Any, filled: Any) -> None:
    columns = {"user": pa.array([1], pa.int32())}
    metadata = {"features": "clicks:count_12d,clicks:sum_n_1d", "full_feature_names": "true",
                "pandas": "{}"}  # fmt: skip
    table = pa.ipc.open_stream(send(client, arrow(columns, metadata)).body).read_all()
    assert table.column_names[:3] == ["user", "clicks__count_12d", "clicks__sum_n_1d"]
    query = f"features=clicks:count_12d&features=clicks:sum_n_1d&as_of={filled.now_ms + 2 * DAY_MS}"
    table = pa.ipc.open_stream(send(client, arrow(columns), query=query).body).read_all()
    assert table.column("sum_n_1d").to_pylist() == [0]
    # the query goes before the metadata
    table = pa.ipc.open_stream(
        send(client, arrow(columns, metadata), query="features=clicks:count_12d").body
    ).read_all()
    assert table.column_names[1] == "clicks__count_12d"


def test_inputs_and_dates_are_columns_in_arrow(client: Any) -> None:
    body = arrow({"user": [1, 2], "amount": [6.0, 3.0]}, {"feature_service": "paying_v1"})
    assert send(client, body, headers={"accept": JSON}).json["results"][2]["values"] == [0.5, 3.0]
    body = arrow({"shop": ["north"], "day": [dt.date(2011, 1, 26)]})
    answer = send(client, body, query="feature_service=visiting_v1", headers={"accept": JSON})
    assert answer.json["results"][2]["values"] == [3]


def test_any_format_is_answered_in_any(client: Any) -> None:
    bodies = {
        JSON: msgspec.json.encode(READ),
        PACK: msgspec.msgpack.encode(READ),
        ARROW: arrow({"user": [1, 99]}, {"feature_service": "reading_v1"}),
    }
    for body_kind, body in bodies.items():
        for reply_kind in bodies:
            answer = send(client, body, body_kind, headers={"accept": reply_kind})
            assert (answer.status, answer.headers["content-type"]) == (200, reply_kind)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", PACK), ("*/*", PACK), ("application/*;q=0.1", PACK), (JSON, JSON),
        (f"text/html, {JSON};q=0.2, {ARROW};q=0.3", ARROW), (f"{JSON};q=0, */*", PACK),
        (f"{JSON}, {ARROW}", JSON), (f"{JSON};q=oops, {ARROW};q=0.1", ARROW),
        ("APPLICATION/JSON", JSON), (f"{PACK};q=0, {JSON}", JSON),
    ],
)  # fmt: skip
def test_accept_is_weighed(accept: str, expected: str) -> None:
    assert format_of_reply(accept.encode(), Format.MESSAGE_PACK).value == expected


def test_what_is_not_spoken_here_is_said(client: Any) -> None:
    assert send(client, b"a=1", "text/csv").problem[:2] == (415, "unsupported_media_type")
    assert send(client, b"{}", f"{JSON}; charset=utf-16").problem[0] == 415
    assert send(client, b"{}", f"{JSON}; charset=utf-8").problem[0] == 422
    assert send(client, b"{}", JSON, headers={"accept": "text/html"}).problem[0] == 406
    gzip = send(client, b"\x1f\x8b", JSON, headers={"content-encoding": "gzip"}).problem
    assert gzip[0] == 415
    assert "gzip" in gzip[2]
    with pytest.raises(RequestRejected):
        format_of_reply(b"application/json;q=0", Format.JSON)


def test_a_body_without_a_type_and_that_of_curl_are_json(client: Any) -> None:
    body = msgspec.json.encode(READ)
    assert client.read(body).status == 200
    assert send(client, body, "application/x-www-form-urlencoded").status == 200


QUERY = "feature_service=reading_v1"
ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")
WRONG = [
    ("no stream", b"", QUERY, 400, "not an Arrow stream"),
    ("text", b"user\n1\n", QUERY, 400, "not an Arrow stream"),
    ("cut short", arrow({"user": [1] * 1000})[:-500], QUERY, 400, "not an Arrow stream"),
    ("compressed", arrow({"user": [7] * 10_000}, options=ZSTD), QUERY, 422, "without compression"),
    ("dictionary", arrow({"user": pa.array(["a"] * 9).dictionary_encode()}), QUERY, 422,
     "no dictionaries"),
    ("nulls", arrow({"user": pa.nulls(10**9)}), QUERY, 422, "'user' is null"),
    ("nested", arrow({"user": [[1]]}), QUERY, 422, "list<"),
    ("null key", arrow({"user": [1, None]}), QUERY, 422, "null in row 1"),
    ("float key", arrow({"user": [1.0]}), QUERY, 422, "entity key 'user'"),
    ("no columns", arrow({}), QUERY, 422, "'entities' is empty"),
    ("other column", arrow({"user": [1], "x": [1]}), QUERY, 422, "'x' is used by none"),
    ("no features", arrow({"user": [1]}), "", 422, "names no features"),
    ("odd field", arrow({"user": [1]}), QUERY + "&x=1", 422, "'x'"),
    ("odd time", arrow({"user": [1]}), QUERY + "&as_of=soon", 422, "as_of='soon'"),
    ("old name", arrow({"user": [1]}), QUERY + "&now_ms=5", 422, "expected: features, feature_s"),
    ("old name in metadata", arrow({"user": [1]}, {"now_ms": "5"}), QUERY, 422, "mean 'as_of'?"),
    ("field twice", arrow({"user": [1]}), QUERY + "&" + QUERY, 422, "twice"),
    ("bad escape", arrow({"user": [1]}), "feature_service=%ff", 400, "cannot be read"),
    ("no value", arrow({"user": [1]}), "feature_service", 400, "cannot be read"),
    ("odd flag", arrow({"user": [1]}), QUERY + "&full_feature_names=2", 422, "full_feature_names"),
    ("metadata not text", arrow({"user": [1]}, {b"feature_service": b"\xff"}), "", 400,  # type: ignore[dict-item]
     "cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "body", "query", "status", "text"), WRONG, ids=[w[0] for w in WRONG]
)
def test_a_wrong_stream_is_answered_with_what_is_wrong(
    client: Any, what: str, body: bytes, query: str, status: int, text: str
) -> None:
    got = send(client, body, query=query).problem
    assert got[0] == status
    assert text in got[2]


def test_two_columns_of_one_name_are_refused(client: Any) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["user", "user"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    got = send(client, sink.getvalue().to_pybytes(), query=QUERY).problem
    assert "two columns are called 'user'" in got[2]


def test_a_query_goes_with_arrow_only(client: Any) -> None:
    got = client.read(READ, query="as_of=5").problem
    assert got[0] == 422
    assert "belong in its body" in got[2]


@pytest.mark.parametrize("seed", seeds(10))
def test_broken_bytes_of_any_format_are_refused_or_answered(client: Any, seed: int) -> None:
    rng = random.Random(seed)
    whole = {
        JSON: msgspec.json.encode(READ),
        PACK: msgspec.msgpack.encode(READ),
        ARROW: arrow({"user": [1, 2], "amount": [1.0, 2.0]}, {"feature_service": "paying_v1"}),
    }
    for _ in range(60):
        kind = rng.choice(list(whole))
        body = bytearray(whole[kind])
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(body))
            change = rng.random()
            if change < 0.6:
                body[at] = rng.randrange(256)
            elif change < 0.8:
                del body[at : at + rng.randint(1, 8)]
            else:
                body[at:at] = rng.randbytes(rng.randint(1, 8))
            if not body:
                break
        answer = send(client, bytes(body), kind)
        assert answer.status < 500, (kind, bytes(body), answer.body)


def test_long_headers_are_shortened_in_errors(client: Any) -> None:
    """What a client sends is in the error, which is searched for secrets: a bounded part of it."""
    for name in ("accept", "content-type", "content-encoding"):
        answer = client.read({"entities": {}}, headers={name: "a" * 30_000})
        assert answer.status in (406, 415)
        assert len(answer.body) < 1_000, name
