"""Events with future timestamps: held, then released exactly once, in spite of crashes."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from dataclasses import replace
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import TableError
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    List,
    String,
    Timestamp,
    arrow_schema,
)
from paimon_features.core.windows import HOUR_MS, MINUTE_MS
from paimon_features.definitions import EventSource
from paimon_features.ingest import release as module
from paimon_features.ingest.release import release_due
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.specs import events_spec
from paimon_features.lake.writing.table_writer import EventWriter

NOW_MS = 1_323_421_200_000
SKEW_MS = 5 * MINUTE_MS
SOURCE = EventSource("sales", {"id": Int64, "note": String, "t": Int64}, event_time="t")


@pytest.fixture
def writer(lake: Lake) -> EventWriter:
    lake.create(events_spec(SOURCE.table, SOURCE.schema))
    return EventWriter.of(lake, SOURCE, lambda: NOW_MS)


def sales(*events: tuple[int, int]) -> pa.Table:
    ids, times = zip(*events, strict=True)
    return pa.table({"id": ids, "note": ["ü"] * len(ids), "t": times})


def ids(lake: Lake) -> list[int]:
    return sorted(read_arrow(lake, SOURCE.table, ["id"]).column("id").to_pylist())


def test_an_event_is_held_until_it_is_within_the_allowed_skew(
    lake: Lake, writer: EventWriter
) -> None:
    #  clock    now        +1 ms                      +1 h
    #  released            1 (its time is within      2
    #                      the skew from here on)
    writer.write(
        sales((0, NOW_MS + SKEW_MS), (1, NOW_MS + SKEW_MS + 1), (2, NOW_MS + SKEW_MS + HOUR_MS))
    )
    assert ids(lake) == [0]
    first = release_due(lake, SOURCE, NOW_MS)
    assert (first.events, first.waiting, first.next_ms) == (0, 2, NOW_MS + 1)
    second = release_due(lake, SOURCE, NOW_MS + 1)
    assert (second.events, second.waiting, second.time_ms) == (1, 1, NOW_MS + 1)
    assert ids(lake) == [0, 1]
    assert release_due(lake, SOURCE, NOW_MS + HOUR_MS).events == 1
    assert release_due(lake, SOURCE, NOW_MS + HOUR_MS).events == 0
    assert ids(lake) == [0, 1, 2]
    row = read_arrow(lake, SOURCE.table).sort_by("id").to_pylist()[1]
    assert (row["note"], row["ingest_time_ms"]) == ("ü", NOW_MS + 1)


def test_values_of_every_type_round_trip(lake: Lake) -> None:
    kinds = {
        "t": Int64, "i": Int64, "small": Int32, "x": Float64, "y": Float32, "d": Decimal(38, 9),
        "word": String, "flag": Bool, "raw": Bytes, "day": Date, "at": Timestamp,
        "many": List(Float64, 3), "few": List(Int64, 2),
    }  # fmt: skip
    source = EventSource("all", kinds, event_time="t")
    lake.create(events_spec(source.table, kinds))
    values: dict[str, Any] = {
        "t": NOW_MS + HOUR_MS, "i": -(2**63), "small": -(2**31), "x": 5e-324, "y": 0.1,
        "d": PyDecimal("12345678901234567890123456789.123456789"), "word": '"ü\n',
        "flag": False, "raw": b"\x00\xff", "day": dt.date(1, 1, 1),
        "at": dt.datetime(1960, 1, 1, 0, 0, 0, 1000), "many": [0.1, None, 1e300], "few": [1, 2],
    }  # fmt: skip
    nothing = {**dict.fromkeys(values), "t": NOW_MS + HOUR_MS}
    table = pa.Table.from_pylist([values, nothing], schema=arrow_schema(kinds))
    EventWriter.of(lake, source, lambda: NOW_MS).write(table)
    assert release_due(lake, source, NOW_MS + HOUR_MS).events == 2
    got = read_arrow(lake, source.table, list(kinds)).sort_by("i").to_pylist()
    assert got == table.to_pylist()


def test_equal_rows_are_released_as_often_as_they_were_held(
    lake: Lake, writer: EventWriter
) -> None:
    row = (7, NOW_MS + HOUR_MS)
    writer.write(sales(row, row))
    assert release_due(lake, SOURCE, NOW_MS + HOUR_MS).events == 2
    writer.write(sales(row))
    assert release_due(lake, SOURCE, NOW_MS + HOUR_MS).events == 1
    assert ids(lake) == [7, 7, 7]


def test_a_held_duplicate_is_not_released(lake: Lake, writer: EventWriter) -> None:
    source = replace(SOURCE, event_id="id", dedup_horizon="1d")
    with_ids = EventWriter.of(lake, source, lambda: NOW_MS)
    with_ids.write(sales((1, NOW_MS + HOUR_MS), (1, NOW_MS + HOUR_MS), (2, NOW_MS + HOUR_MS)))
    with_ids.write(sales((2, NOW_MS)))
    done = release_due(lake, source, NOW_MS + HOUR_MS)
    assert (done.events, done.duplicates, done.waiting) == (1, 2, 0)
    assert ids(lake) == [1, 2]
    assert release_due(lake, source, NOW_MS + HOUR_MS).events == 0
    reasons = Counter(read_arrow(lake, source.rejected_table).column("reason").to_pylist())
    assert reasons == {"time_in_future": 3, "released": 1, "duplicate": 2}


def test_a_release_interrupted_at_any_step_is_completed_by_the_next(
    lake: Lake, writer: EventWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    real = module.append_arrow
    fuse = [0]

    def fails(*args: Any, **options: Any) -> int:
        after = fuse[0] == 1
        fuse[0] -= 1
        if fuse[0] == 0 and rng.random() < 0.5:
            raise OSError("killed")
        snapshot = real(*args, **options)
        if after:
            raise OSError("killed after its commit")
        return snapshot

    monkeypatch.setattr(module, "append_arrow", fails)
    sent: list[int] = []
    for step in range(12):
        new = [(100 * step + i, NOW_MS + SKEW_MS + rng.randint(1, 12)) for i in range(3)]
        sent += [number for number, _ in new]
        writer.write(sales(*new))
        fuse[0] = rng.choice((0, 1, 2))
        try:
            release_due(lake, SOURCE, NOW_MS + step)
        except OSError:
            continue
    fuse[0] = 0
    release_due(lake, SOURCE, NOW_MS + 12)
    assert ids(lake) == sent


def test_a_malformed_held_row_is_reported(lake: Lake, writer: EventWriter) -> None:
    writer.write(sales((1, NOW_MS + HOUR_MS)))
    other = replace(SOURCE, schema={**SOURCE.schema, "more": Int64})
    with pytest.raises(TableError, match="a held row cannot be read.*'more'"):
        release_due(lake, other, NOW_MS)
