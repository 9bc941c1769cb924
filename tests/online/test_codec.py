"""Record bytes: pinned, and the same after encode and decode."""

from __future__ import annotations

import random

import numpy as np
import pytest

from paimon_features.aggregates import Count, Last, Max, Sum
from paimon_features.columns import Column
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.errors import OnlineStoreError
from paimon_features.online.codec import (
    HEADER,
    HEADER_SIZE,
    LIFETIME_KEY,
    Cells,
    RecordLayout,
    cell_key,
    cell_keys,
)
from paimon_features.online.markers import Building, EpochContent, Marker, ViewState
from paimon_features.schema import Float64, Int64, String
from paimon_features.testing import generators
from paimon_features.testing.sizes import seeds

SOURCE = EventSource(
    "clicks",
    schema={"user": Int64, "t": Int64, "x": Float64, "word": String},
    event_time="t",
)
VIEW = FeatureView(
    "v",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    features=[Sum("x", windows=["1h"]), Max("x", windows=["1d"]), Last("word", windows=["1d"]),
              Count(windows=["1h"])],
).compiled  # fmt: skip


def golden() -> tuple[RecordLayout, np.ndarray, Cells]:
    layout = RecordLayout(VIEW)
    assert [p.name for p in VIEW.partials] == [
        "p_event_time_max", "p_rows", "p_last_word", "p_max_x", "p_sum_x",
    ]  # fmt: skip
    cells = layout.cells(
        np.array([cell_key(0, -1), cell_key(1, 2), LIFETIME_KEY]),
        {
            "p_event_time_max": Column(np.array([-1, 7_200_001, 5])),
            "p_rows": Column(np.array([1, 2, 3])),
            "p_last_word": Column(
                np.array(["ü", None, "ab"], object), np.array([True, False, True])
            ),
            "p_max_x": Column(np.array([0.5, 0.0, -1.0])),
            "p_sum_x": Column(np.array([1.5, 99.0, 0.0]), np.array([True, False, True])),
        },
    )
    headers = np.zeros(1, HEADER)
    headers["bucket"], headers["incarnation"], headers["snapshot"] = 7, 2, 42
    headers["event_high"], headers["pruned_high"] = 7_200_001, -(2**62)
    headers["bucket_high"] = 7_300_000
    return layout, headers, cells


def test_record_bytes_are_pinned() -> None:
    # other bytes would make stored records unreadable: change them only with the format
    layout, headers, cells = golden()
    record = layout.encode(headers, cells, np.array([0, 3]))[0]
    header = (
        "01" "01" "0000" "07000000" + layout.id.to_bytes(4, "little").hex() + "02000000"
        "03000000" "04000000" "2a00000000000000" "01dd6d0000000000" "00000000000000c0"
        "a0636f0000000000"
    )  # fmt: skip
    first = (
        "ffffffffffff7f00" "ffffffffffffffff" "0100000000000000" "00000000" "02000000"
        "000000000000e03f" "000000000000f83f" "07"
    )  # fmt: skip
    second = (
        "0200000000008001" "01dd6d0000000000" "0200000000000000" "02000000" "00000000"
        "0000000000000000" "0000000000000000" "02"
    )  # fmt: skip
    third = (
        "000000000000807f" "0500000000000000" "0300000000000000" "02000000" "02000000"
        "000000000000f0bf" "0000000000000000" "07"
    )  # fmt: skip
    assert record.hex() == header + first + second + third + "üab".encode().hex()
    assert HEADER_SIZE == 56
    assert layout.cell.itemsize == 49


def test_marker_and_state_bytes_are_pinned() -> None:
    marker = Marker(42, 1_000, 0xFEDC_BA98_7654_3210, -1, 2_000, 3_000, incarnation=2, fence=5)
    assert marker.to_bytes().hex() == (
        "01" "01" "0000" "02000000" "0500000000000000" "2a00000000000000" "e803000000000000"
        "ffffffffffffffff" "d007000000000000" "b80b000000000000" "1032547698badcfe"
    )  # fmt: skip
    assert Marker.from_bytes(marker.to_bytes()) == marker
    content = EpochContent("tiles_spend_g1", 1, 0, "ab", 4)
    state = ViewState("1a2b3c4d", content, Building("5e6f7a8b", content, 9))
    assert ViewState.from_bytes(state.to_bytes()) == state
    assert b"evicted" not in state.to_bytes()
    building = Building("5e6f7a8b", content, 9, {"run-2": 5})
    evicted = ViewState("1a2b3c4d", content, building, {"run-1": 3})
    assert ViewState.from_bytes(evicted.to_bytes()) == evicted
    assert evicted.evicted_since({"run-1": 3}) == 0
    assert evicted.evicted_since({"run-1": 4, "run-2": 2}) == 3
    assert state.to_bytes() == (
        b'{"building":{"content":{"buckets":4,"generation":1,"incarnation":0,'
        b'"online_fingerprint":"ab","table":"tiles_spend_g1"},"epoch":"5e6f7a8b","since_ms":9},'
        b'"content":{"buckets":4,"generation":1,"incarnation":0,"online_fingerprint":"ab",'
        b'"table":"tiles_spend_g1"},"epoch":"1a2b3c4d","format":1}'
    )


@pytest.mark.parametrize("data", [b"", b"\x02" + bytes(63), bytes(64), b"x" * 65])
def test_markers_of_another_format_are_rejected(data: bytes) -> None:
    with pytest.raises(OnlineStoreError, match="--rebuild"):
        Marker.from_bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b'{"format":2}', b"null", b"\xff", b'{"format":1}', b"[" * 200_000),
        b'{"format":1,"epoch":5,"content":null,"building":null}',
        b'{"format":1,"epoch":"a","content":{},"building":null}',
        b'{"format":1,"epoch":"a","content":null,"building":[]}',
        b'{"format":1,"epoch":"a","content":{"table":"t","generation":1,"incarnation":0,'
        b'"online_fingerprint":"ab","buckets":"4"},"building":null}',
        b'{"format":1,"epoch":"a","content":{"table":"t","generation":1,"incarnation":0,'
        b'"online_fingerprint":"ab","buckets":0},"building":null}',
    ],
    ids=range(12),
)
def test_states_of_another_format_are_rejected(data: bytes) -> None:
    with pytest.raises(OnlineStoreError, match="--rebuild"):
        ViewState.from_bytes(data)


@pytest.mark.parametrize("seed", seeds(60))
def test_decoding_inverts_encoding(seed: int) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng).compiled
    layout = RecordLayout(view)
    counts = [rng.choice((0, 0, 1, 2, 9)) for _ in range(rng.randint(0, 8))]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rows = int(offsets[-1])
    columns = {p.name: random_column(rng, p.type.text, rows) for p in view.partials}
    columns["p_event_time_max"] = Column(np.arange(rows))
    columns["p_rows"] = Column(np.arange(rows))
    indices = np.concatenate([np.arange(n) for n in [0, *counts]]).astype(np.int64) - 3
    cells = layout.cells(cell_keys(rng.randrange(len(view.levels_ms)), indices), columns)
    headers = np.zeros(len(counts), HEADER)
    headers["snapshot"] = np.arange(len(counts))
    headers["event_high"] = -1
    encoded = layout.encode(headers, cells, offsets)
    # in between, texts lie elsewhere: what comes back has to be the same all the same
    shuffled = layout.concat([layout.empty(), cells, layout.empty()])
    assert layout.encode(headers, shuffled, offsets) == encoded
    records = layout.decode(encoded)
    assert records.offsets.tolist() == offsets.tolist()
    assert records.headers["snapshot"].tolist() == headers["snapshot"].tolist()
    assert records.headers["cells"].tolist() == counts
    assert (records.cells.rows["key"] == cells.rows["key"]).all()
    for name, column in layout.columns(records.cells, [p.name for p in view.partials]).items():
        expected = columns[name]
        assert column.mask.tolist() == expected.mask.tolist()
        assert column.values[column.mask].tolist() == expected.values[expected.mask].tolist()
    assert layout.encode(records.headers, records.cells, records.offsets) == encoded


def random_column(rng: random.Random, kind: str, rows: int) -> Column:
    valid = np.array([rng.random() < 0.7 for _ in range(rows)], bool)
    if kind in ("string", "bytes"):
        some = ("", "a", "ü" * 9, "long " * 40)
        choices = some if kind == "string" else (b"", b"\xff\x00", bytes(range(256)))
        texts = np.empty(rows, object)
        texts[:] = [rng.choice(choices) if ok else None for ok in valid]
        return Column(texts, valid)
    values = [rng.choice((0, 1, -1, 2**63 - 1, -(2**63))) for _ in range(rows)]
    if kind == "float64":
        return Column(np.array(values, np.float64) / 3, valid)
    return Column(np.array(values, np.int64), None if rng.random() < 0.3 else valid)


def test_bytes_that_are_not_a_record_are_rejected() -> None:
    layout, headers, cells = golden()
    record = layout.encode(headers, cells, np.array([0, 3]))[0]
    bad = [
        b"",
        record[:-1],
        record + b"x",
        record[:40],
        b"\x02" + record[1:],
        record[:8] + b"\x00" + record[9:],
    ]
    for data in bad:
        with pytest.raises(OnlineStoreError, match="feature view 'v'.*--rebuild"):
            layout.decode([record, data])


def test_zero_records_decode_to_zero_records() -> None:
    layout = RecordLayout(VIEW)
    records = layout.decode([])
    assert len(records.headers) == len(records.cells) == 0
    assert layout.encode(records.headers, records.cells, records.offsets) == []
