"""Record bytes: pinned, and the same after encode and decode."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core import native
from paimon_features.core.columns.column import Column
from paimon_features.core.errors import OnlineStoreError
from paimon_features.core.types.array_types import Array
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import Count, Last, Max, Sum
from paimon_features.online.store import codec
from paimon_features.online.store.codec import (
    HEADER,
    HEADER_SIZE,
    LIFETIME_KEY,
    Cells,
    RecordLayout,
    cell_key,
    cell_keys,
)
from paimon_features.online.store.markers import Building, EpochContent, Marker, ViewState
from paimon_features.testing.sizes import cases, seeds
from tests import generators
from tests.stored_rows import StoredRows

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


PACKED = (
    "00100100011900000000001301de93040000000400000011010001020001"
    "0200021111f60f0a0011010f0000001102050005c3bc6162"
)
WAYS = pytest.mark.parametrize("way", ["native", "numpy"])


def choose(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Pack and unpack by the native core, or by NumPy."""
    if way == "native" and native.CORE is None:
        pytest.skip("the native core is not built (make test)")
    if way == "numpy":
        monkeypatch.setattr(codec, "CORE", None)


def golden() -> tuple[RecordLayout, Array, Cells]:
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


def plain_record(layout: RecordLayout) -> str:
    """The golden record as releases before format 2 have written it."""
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
    return header + first + second + third + "üab".encode().hex()


def test_record_bytes_are_pinned() -> None:
    # other bytes would make stored records unreadable: change them only with the format
    layout, headers, cells = golden()
    record = layout.encode(headers, cells, np.array([0, 3]))[0]
    assert HEADER_SIZE == 56
    assert layout.cell.itemsize == 49
    assert record.hex()[2:112] == plain_record(layout)[2:112]
    assert record.hex()[:2] == "02"
    assert record[56:].hex() == PACKED


@WAYS
def test_plain_records_of_earlier_releases_are_read(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, way)
    layout, headers, cells = golden()
    packed = layout.encode(headers, cells, np.array([0, 3]))[0]
    plain = bytes.fromhex(plain_record(layout))
    for records in ([plain], [packed, plain, packed, plain]):
        found = layout.decode(records)
        [one] = {
            found.cells.rows[i : i + 3]["key"].tobytes() for i in range(0, len(found.cells), 3)
        }
        assert one == cells.rows["key"].tobytes()
        for name, column in layout.columns(found.cells, [p.name for p in VIEW.partials]).items():
            expected = layout.column(cells, name)
            assert column.mask.tolist() == expected.mask.tolist() * len(records)
            values = column.values[column.mask].tolist()
            assert values == expected.values[expected.mask].tolist() * len(records)


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


def test_no_records_are_encoded_without_the_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paimon_features.online.store.codec.CORE", None)
    view = generators.random_view(random.Random(1)).compiled
    layout = RecordLayout(view)
    columns = {p.name: random_column(random.Random(1), p.type.text, 0) for p in view.partials}
    columns |= {name: Column(np.arange(0)) for name in ("p_event_time_max", "p_rows")}
    cells = layout.cells(cell_keys(0, np.arange(0)), columns)
    assert layout.encode(np.zeros(0, HEADER), cells, np.zeros(1, np.int64)) == []


@pytest.mark.parametrize("number", [0, 3, 255])
def test_another_format_is_refused_even_without_cells(number: int) -> None:
    """Of a record without cells every format has the same length."""
    view = generators.random_view(random.Random(1)).compiled
    layout = RecordLayout(view)
    columns = {p.name: random_column(random.Random(1), p.type.text, 0) for p in view.partials}
    columns |= {name: Column(np.arange(0)) for name in ("p_event_time_max", "p_rows")}
    cells = layout.cells(cell_keys(0, np.arange(0)), columns)
    [record] = layout.encode(np.zeros(1, HEADER), cells, np.zeros(2, np.int64))
    assert len(layout.decode([record]).cells) == 0
    with pytest.raises(OnlineStoreError, match=rf"format \[{number}\]"):
        layout.decode([bytes([number]) + record[1:]])


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


@WAYS
def test_bytes_that_are_not_a_record_are_rejected(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, way)
    layout, headers, cells = golden()
    record = layout.encode(headers, cells, np.array([0, 3]))[0]
    bad = [
        b"",
        record[:-1],
        record + b"x",
        record[:40],
        b"\x01" + record[1:],
        b"\x03" + record[1:],
        record[:56] + b"\xff" + record[57:],
        record[:8] + b"\x00" + record[9:],
    ]
    for data in bad:
        with pytest.raises(OnlineStoreError, match="feature view 'v'.*--rebuild"):
            layout.decode([record, data])


@pytest.mark.skipif(native.CORE is None, reason="the native core is not built (make test)")
@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_the_core_and_numpy_pack_the_same_bytes(seed: int) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng).compiled
    rows = StoredRows(view)
    layout = rows.variant.layout
    found = [r for r in rows.random_records(rng, 1_700_000_123_456, 9) if r is not None]
    damaged = []
    for record in found:
        one = bytearray(record)
        one[rng.randrange(len(one))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(one))
    results: list[list[bytes]] = []
    with pytest.MonkeyPatch.context() as patch:
        for way in ("native", "numpy"):
            choose(patch, way)
            read = layout.decode(found)
            assert layout.encode(read.headers, read.cells, read.offsets) == found
            result = [read.cells.rows.tobytes(), read.cells.text, read.headers.tobytes()]
            for record in damaged:
                # both read the same, or neither reads anything
                try:
                    with np.errstate(all="ignore"):
                        result.append(layout.decode([record]).cells.rows.tobytes())
                except OnlineStoreError:
                    result.append(b"")
            results.append(result)
    assert results[0] == results[1]


def test_a_record_is_packed_to_a_third() -> None:
    view = FeatureView(
        "spend", source=SOURCE, entity=Entity("user", keys={"user": Int64}),
        features=[Sum("x", windows=["7d"], scale=2), Max("x", windows=["7d"], scale=2), Count()],
    ).compiled  # fmt: skip
    layout = RecordLayout(view)
    rng = np.random.default_rng(0)
    index = np.arange(200)
    columns = {p.name: Column(rng.integers(1, 10_000, 200)) for p in view.partials}
    columns["p_rows"] = Column(rng.integers(1, 9, 200))
    columns["p_event_time_max"] = Column(index * 300_000 + rng.integers(0, 300_000, 200))
    columns["p_sum_x_s2"] = Column(
        np.where(columns["p_rows"].values == 1, columns["p_max_x_s2"].values, 20_000)
    )
    headers = np.zeros(1, HEADER)
    headers["event_high"] = columns["p_event_time_max"].values[-1]
    cells = layout.cells(cell_keys(0, index), columns)
    [record] = layout.encode(headers, cells, np.array([0, 200]))
    assert len(record) - HEADER_SIZE < 200 * layout.cell.itemsize / 3


def test_zero_records_decode_to_zero_records() -> None:
    layout = RecordLayout(VIEW)
    records = layout.decode([])
    assert len(records.headers) == len(records.cells) == 0
    assert layout.encode(records.headers, records.cells, records.offsets) == []
