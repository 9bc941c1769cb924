"""Replies: what a value of each type looks like; the fast way writes what the plain one does."""

from __future__ import annotations

import datetime as dt
import gc
import json
import random
import weakref
from collections.abc import Mapping
from decimal import Decimal as PyDecimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    DataType,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    List,
    Map,
    String,
    Timestamp,
)
from paimon_features.core.types.statuses import STATUS_NAMES, Status
from paimon_features.definitions import FeatureRef, Selection
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.serving.replies import json_reply, reply_formats
from paimon_features.serving.replies.freshness import Freshness
from paimon_features.serving.replies.reply_formats import (
    arrow_stream,
    feast_json,
    message_pack,
)
from paimon_features.serving.replies.response import OnlineResponse, ResultBatch
from paimon_features.testing.sizes import cases
from tests.reference.replies import json_document, pack_document

FRESH = Freshness(
    7, 1_700_000_000_000, 1_699_999_999_000, 1_699_999_999_999, 1_700_000_000_500, False
)
KINDS: Mapping[str, tuple[DataType, list[Any]]] = {
    "big": (Int64, [2**63 - 1, -(2**63), 2**53 + 1]),
    "small": (Int32, [-1, 2**31 - 1, 0]),
    "ratio": (Float64, [0.1, -1e308, 5e-324]),
    "half": (Float32, [0.1, 1.5, -0.0]),
    "flag": (Bool, [True, False, True]),
    "text": (String, ['a,"b"\\', "\x00\u2028é", "😀"]),
    "raw": (Bytes, [b"\x00\xff", b"", b"abc"]),
    "price": (Decimal(12, 9), [PyDecimal("12.50"), PyDecimal("0.000000001"), PyDecimal("-0")]),
    "day": (Date, [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1)]),
    "at": (
        Timestamp,
        [dt.datetime(2023, 11, 14, 22, 13, 20), dt.datetime(1, 1, 1, 0, 0, 0, 5000),
         dt.datetime(9999, 12, 31, 23, 59, 59, 999000)],
    ),
    "vector": (List(Float64), [[1.0, None], [], [0.5]]),
    "days": (List(Date), [[dt.date(2020, 2, 29)], [None], []]),
    "counts": (Map(String, Int64), [[("a", 1), ("other", 2)], [], [("é", 2**60)]]),
    "sums": (Map(String, Decimal(4, 1)), [[("a", PyDecimal("1.0"))], [], []]),
}  # fmt: skip


def response_of(
    kinds: Mapping[str, tuple[DataType, list[Any]]],
    codes: Any = None,
    times: Any = None,
    part: slice | None = None,
    keys: Mapping[str, tuple[DataType, list[Any]]] | None = None,
) -> OnlineResponse:
    """A response of one view from Python values, as Arrow knows them."""
    rows = len(next(iter(kinds.values()))[1])
    keys = {"user": (Int64, list(range(rows)))} if keys is None else keys
    codes = np.zeros(rows, np.int8) if codes is None else codes
    times = np.full(rows, 1_700_000_000_123) if times is None else times
    batch = ResultBatch(
        Selection.of([FeatureRef("v", name) for name in kinds]),
        1_700_000_000_999,
        {name: kind for name, (kind, _) in keys.items()},
        [kind for kind, _ in kinds.values()],
        [Column.from_arrow(pa.array(values, kind.arrow)) for kind, values in kinds.values()],
        codes if isinstance(codes, list) else [codes] * len(kinds),
        [times] * len(kinds),
        {"v": times},
        {"v": "1a2b3c4d"},
    )
    part = slice(0, rows) if part is None else part
    own = {name: values[part] for name, (_, values) in keys.items()}
    return OnlineResponse(batch, part.start, part.stop, own, {"v": FRESH})


def test_each_type_has_its_form() -> None:
    document = json.loads(feast_json(response_of(KINDS)))
    names = document["metadata"]["feature_names"]
    values = {n: r["values"] for n, r in zip(names, document["results"], strict=True)}
    assert values == {
        "user": [0, 1, 2],
        "big": [2**63 - 1, -(2**63), 2**53 + 1],
        "small": [-1, 2**31 - 1, 0],
        "ratio": [0.1, -1e308, 5e-324],
        "half": [float(np.float32(0.1)), 1.5, 0.0],
        "flag": [True, False, True],
        "text": ['a,"b"\\', "\x00\u2028é", "😀"],
        "raw": ["AP8=", "", "YWJj"],
        "price": ["12.500000000", "0.000000001", "0.000000000"],
        "day": ["0001-01-01", "9999-12-31", "1970-01-01"],
        "at": ["2023-11-14T22:13:20Z", "0001-01-01T00:00:00.005Z", "9999-12-31T23:59:59.999Z"],
        "vector": [[1.0, None], [], [0.5]],
        "days": [["2020-02-29"], [None], []],
        "counts": [{"a": 1, "other": 2}, {}, {"é": 2**60}],
        "sums": [{"a": "1.0"}, {}, {}],
    }
    packed = msgspec.msgpack.decode(message_pack(response_of(KINDS)))
    by_name = dict(zip(packed["metadata"]["feature_names"], packed["values"], strict=True))
    assert by_name.pop("raw") == [b"\x00\xff", b"", b"abc"]
    assert by_name == {name: value for name, value in values.items() if name != "raw"}


def test_a_reply_is_what_a_feast_server_writes_with_our_freshness_beside_it() -> None:
    codes = np.array([Status.PRESENT, Status.MISSING], np.int8)
    got = feast_json(
        response_of({"n": (Int64, [5, None])}, codes, np.array([1_700_000_000_000, NEVER_MS]))
    )
    assert got == (
        b'{"metadata":{"feature_names":["user","n"],"as_of_ms":1700000000999,"freshness":{"v":{'
        b'"applied_snapshot":7,"commit_time_ms":1700000000000,"event_time_low_ms":1699999999000,'
        b'"event_time_high_ms":1699999999999,'
        b'"current_ms":1700000000500,"stale":false}}},"results":['
        b'{"values":[0,1],"statuses":["PRESENT","PRESENT"],'
        b'"event_timestamps":["1970-01-01T00:00:00Z","1970-01-01T00:00:00Z"]},'
        b'{"values":[5,null],"statuses":["PRESENT","NOT_FOUND"],'
        b'"event_timestamps":["2023-11-14T22:13:20Z","1970-01-01T00:00:00Z"]}]}'
    )


@pytest.mark.parametrize("status", list(Status))
def test_each_status_has_feasts_name_and_ours_where_it_says_more(status: Status) -> None:
    for rows in (1, 2):
        codes = np.full(rows, status, np.int8)
        document = json.loads(feast_json(response_of({"n": (Int64, [1] * rows)}, codes)))
        result = document["results"][1]
        feast = {
            Status.PRESENT: "PRESENT", Status.STALE: "PRESENT", Status.EXPIRED: "OUTSIDE_MAX_AGE",
            Status.MISSING: "NOT_FOUND", Status.ILL_CONDITIONED: "NULL_VALUE",
        }[status]  # fmt: skip
        assert result["statuses"] == [feast] * rows
        more = status in (Status.STALE, Status.ILL_CONDITIONED)
        assert result.get("detailed_statuses") == ([status.name] * rows if more else None)


def test_full_names_have_the_view_in_front() -> None:
    response = response_of({"n": (Int64, [5])})
    assert json.loads(feast_json(response, True))["metadata"]["feature_names"] == ["user", "v__n"]
    packed = msgspec.msgpack.decode(message_pack(response, True))
    assert packed["metadata"]["feature_names"] == ["user", "v__n"]
    table = pa.ipc.open_stream(arrow_stream(response, True)).read_all()
    assert table.column_names == ["user", "v__n", "v__n__status", "v__event_time_ms"]


def test_an_arrow_stream_has_values_statuses_and_freshness() -> None:
    codes = np.array([0, 3, 4], np.int8)
    times = np.array([5, NEVER_MS, 6])
    response = response_of(KINDS, codes, times)
    table = pa.ipc.open_stream(arrow_stream(response)).read_all()
    assert table.select(["user", *KINDS]).replace_schema_metadata().equals(response.table)
    assert table["counts__status"].to_pylist() == [0, 3, 4]
    assert table["v__event_time_ms"].to_pylist() == [5, None, 6]
    reported = json.loads(table.schema.metadata[b"paimon_features"])
    assert reported["status_names"] == list(STATUS_NAMES)
    assert reported["freshness"]["v"]["applied_snapshot"] == 7


@pytest.mark.parametrize("rows", [0, 1, 8, 9])
def test_an_arrow_stream_is_the_same_when_its_frame_is_known(rows: int) -> None:
    numbers = [1, 2**62, -5] * 3
    for shift in range(3):  # the first one is written by Arrow
        kinds: Mapping[str, tuple[DataType, list[Any]]] = {
            "big": (Int64, [n + shift for n in numbers[:rows]]),
            "ratio": (Float64, [n / 3 + shift for n in numbers[:rows]]),
        }
        codes = np.arange(rows, dtype=np.int8) % 3
        for part in (slice(0, rows), slice(rows // 2, rows)):
            response = response_of(kinds, codes, np.arange(rows) + shift, part)
            schema = reply_formats._schema(response.batch, False)
            metadata = reply_formats._json(reply_formats._metadata(response))
            expected = reply_formats._written(response, schema, metadata)
            assert arrow_stream(response) == expected
            known = {(key[-2], key[-1]) for key in reply_formats._frames}
            assert (len(response), len(metadata)) in known


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_fast_replies_are_what_the_plain_ones_are(seed: int) -> None:
    rng = random.Random(seed)
    rows = rng.choice((1, 1, 2, 5))
    # the native core writes these, and leaves those of "ratio" to msgspec
    known = {**KINDS, "money": (Float64, [12.5, -0.3, 1 / 3, 7.0])}
    names = rng.sample(list(known), rng.randint(1, len(known)))
    kinds = {
        name: (known[name][0], [rng.choice([None, *known[name][1]]) for _ in range(rows)])
        for name in names
    }
    shared = np.array([rng.choice((0, 0, 1, 2, 3)) for _ in range(rows)], np.int8)
    codes = [
        shared if rng.random() < 0.8 else np.maximum(shared, rng.choice((0, 4))) for _ in names
    ]
    times = np.array(
        [rng.choice((NEVER_MS, 0, -1, rng.randrange(2**42), 1000)) for _ in range(rows)]
    )
    keys = {
        name: (KINDS[kind][0], [rng.choice(KINDS[kind][1]) for _ in range(rows)])
        for name, kind in (("a", "text"), ("b", "day"), ("c", "big"), ("d", "flag"))
        if rng.random() < 0.5 or name == "a"
    }
    whole = response_of(kinds, codes, times, keys=keys)
    for _ in range(3):  # parts of one batch share what was rendered
        start = rng.randint(0, rows)
        stop = rng.randint(start, rows)
        own = {name: values[start:stop] for name, (_, values) in keys.items()}
        response = OnlineResponse(whole.batch, start, stop, own, {"v": FRESH})
        full = rng.random() < 0.5
        written = feast_json(response, full)
        assert json.loads(written) == json_document(response, full)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_reply, "CORE", None)
            assert feast_json(response, full) == written
        packed = msgspec.msgpack.decode(message_pack(response, full))
        assert packed == pack_document(response, full)
        table = pa.ipc.open_stream(arrow_stream(response)).read_all()
        plain = table.select(response.table.column_names).replace_schema_metadata()
        assert plain.equals(response.table)


def test_a_written_reply_is_let_go_at_once() -> None:
    """A cycle would keep all that was read until the garbage collector comes by."""
    response = response_of({"big": (Int64, [1, 2])}, [np.zeros(2, np.int8)], np.zeros(2, np.int64))
    for write in (feast_json, message_pack, arrow_stream):
        write(response)
    batch = weakref.ref(response.batch)
    gc.disable()
    try:
        del response
        assert batch() is None
    finally:
        gc.enable()
