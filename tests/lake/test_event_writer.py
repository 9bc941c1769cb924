"""Events written from Python: valid rows once, rejected rows with their reason."""

from __future__ import annotations

import json
import math
import random
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import TableError, UnknownNameError
from paimon_features.core.types.schema import (
    Bool,
    Date,
    Decimal,
    Float64,
    Int32,
    Int64,
    String,
    Timestamp,
)
from paimon_features.core.windows import DAY_MS, HOUR_MS, MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions import EventSource
from paimon_features.lake import table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.specs import events_spec, rejected_spec
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.testing.sizes import seeds

NOW_MS = 1_323_421_200_000  # 2011-12-09T09:00Z


@pytest.fixture
def writer(lake: Lake) -> EventWriter:
    columns = {"customer_id": Int64, "price": Float64, "note": String, "time_ms": Int64}
    lake.create(events_spec("events_retail", columns))
    return EventWriter(lake, "events_retail", "time_ms", lambda: NOW_MS)


def rows(*events: tuple[object, ...]) -> pa.Table:
    names = ("customer_id", "price", "note", "time_ms")
    return pa.table({name: [event[i] for event in events] for i, name in enumerate(names)})


def test_the_first_write_of_a_sparse_history_chooses_longer_partitions(
    lake: Lake, writer: EventWriter
) -> None:
    writer.write(rows(*((1, 2.5, "x", day * DAY_MS) for day in range(-100, 0))))
    assert table_options.partition_days(lake, "events_retail") == 8
    writer.write(rows((1, 2.5, "y", 3 * DAY_MS)))
    got = read_arrow(lake, "events_retail")
    assert set(got.column("event_day").to_pylist()) == set(range(-104, 8, 8))
    assert got.num_rows == 101


def test_partitions_of_a_day_that_were_defined_stay(lake: Lake) -> None:
    lake.create(events_spec("events_daily", {"t": Int64}, 1))
    EventWriter(lake, "events_daily", "t", lambda: NOW_MS).write(
        pa.table({"t": [day * DAY_MS for day in range(100)]})
    )
    days = read_arrow(lake, "events_daily").column("event_day").to_pylist()
    assert sorted(days) == [*range(100)]


def test_valid_rows_get_their_day_and_the_time_of_writing(lake: Lake, writer: EventWriter) -> None:
    #  day     -2        -1         0         1
    #           [---------)[---------)[--------)
    #  events           a  b        c d
    times = [-DAY_MS - 1, -DAY_MS, -1, 0]
    report = writer.write(rows(*((1, 2.5, "x", t) for t in times)))
    assert (report.written, report.rejected, report.snapshot_id) == (4, {}, 1)
    got = read_arrow(lake, "events_retail").sort_by("time_ms")
    assert got.column("event_day").to_pylist() == [-2, -1, -1, 0]
    assert got.column("ingest_time_ms").to_pylist() == [NOW_MS] * 4
    assert read_arrow(lake, "rejected_retail").num_rows == 0


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ((1, 1.0, "x", None), "missing_time"),
        ((1, 1.0, "x", MIN_TIME_MS - 1), "time_out_of_range"),
        ((1, 1.0, "x", MAX_TIME_MS + 1), "time_out_of_range"),
        ((1, 1.0, "x", NOW_MS + DAY_MS + 1), "time_in_future"),
        ((1, math.nan, "x", 5), "not_finite"),
        ((1, -math.inf, "x", 5), "not_finite"),
    ],
)
def test_an_invalid_row_is_rejected_with_its_reason_and_others_written(
    lake: Lake, writer: EventWriter, event: tuple[object, ...], reason: str
) -> None:
    report = writer.write(rows((1, 1.0, "good", 5), event, (2, None, None, NOW_MS + DAY_MS)))
    assert (report.written, report.rejected) == (2, {reason: 1})
    assert set(read_arrow(lake, "events_retail").column("note").to_pylist()) == {"good", None}
    (bad,) = read_arrow(lake, "rejected_retail").to_pylist()
    assert (bad["reason"], bad["origin"], bad["ingest_time_ms"]) == (
        reason, "EventWriter", NOW_MS
    )  # fmt: skip
    assert json.loads(bad["raw"])["time_ms"] == event[3]


def test_only_the_values_of_a_wrong_type_are_rejected(lake: Lake, writer: EventWriter) -> None:
    table = pa.table(
        {
            "customer_id": ["1", "two", None, "4"],
            "price": ["1.5", "2", "x", "nan"],
            "note": [1, 2, 3, 4],
            "time_ms": [5, 5, 5, 5],
        }
    )
    report = writer.write(table)
    assert (report.written, report.rejected) == (1, {"not_finite": 1, "wrong_type": 2})
    (good,) = read_arrow(lake, "events_retail", ["customer_id", "price", "note"]).to_pylist()
    assert good == {"customer_id": 1, "price": 1.5, "note": "1"}


def test_a_repeated_write_adds_nothing(lake: Lake, writer: EventWriter) -> None:
    table = rows((1, 1.0, "good", 5), (1, 1.0, "bad", None))
    for _ in range(3):
        writer.write(table, commit_user="producer", commit_identifier=8)
    assert read_arrow(lake, "events_retail").num_rows == 1
    assert read_arrow(lake, "rejected_retail").num_rows == 1


def test_missing_or_undeclared_columns_are_an_error(writer: EventWriter) -> None:
    with pytest.raises(TableError, match="missing: time_ms, not declared: extra"):
        writer.write(
            rows((1, 1.0, "x", 5)).rename_columns(["customer_id", "price", "note", "extra"])
        )


def test_the_event_time_may_be_a_timestamp(lake: Lake) -> None:
    lake.create(events_spec("events_x", {"at": Timestamp, "n": Int32, "d": Decimal(6, 2)}))
    writer = EventWriter(lake, "events_x", "at", lambda: NOW_MS, rejected_table="rejected_other")
    times = pa.array([-1, None, DAY_MS], pa.timestamp("ms"))
    numbers = pa.array([1, 2, 2**40])
    decimals = pa.array(["1.25", "2", "3"])
    report = writer.write(pa.table({"at": times, "n": numbers, "d": decimals}))
    assert (report.written, report.rejected) == (1, {"missing_time": 1, "wrong_type": 1})
    assert read_arrow(lake, "events_x").column("event_day").to_pylist() == [-1]


def test_finer_times_are_rounded_down_below_zero_too(lake: Lake) -> None:
    lake.create(events_spec("events_x", {"at": Timestamp}))
    writer = EventWriter(lake, "events_x", "at", lambda: NOW_MS)
    times = pa.array([-1, 1_999_999, None], pa.timestamp("ns", "Europe/Berlin"))
    assert writer.write(pa.table({"at": times})).rejected == {"missing_time": 1}
    got = read_arrow(lake, "events_x").sort_by("at").column("at").cast(pa.int64())
    assert got.to_pylist() == [-1, 1]


def test_a_missing_time_column_is_named(lake: Lake, writer: EventWriter) -> None:
    with pytest.raises(UnknownNameError, match="'when'"):
        EventWriter(lake, "events_retail", "when", lambda: 0)


ORDERS = EventSource(
    "orders",
    {"order_id": String, "n": Int64, "gone": Bool, "t": Int64},
    event_time="t",
    retraction="gone",
    event_id="order_id",
    dedup_horizon="1h",
)


def test_the_first_of_rows_with_equal_ids_within_the_horizon_is_kept(lake: Lake) -> None:
    #  clock    0            1 h - 1 ms          1 h
    #           a a' b       a (again)           a (another)
    lake.create(events_spec(ORDERS.table, ORDERS.schema))
    now = [NOW_MS]
    writer = EventWriter.of(lake, ORDERS, lambda: now[0])

    def write(*given: tuple[str | None, int, bool | None]) -> dict[str, int]:
        names = ("order_id", "n", "gone")
        table = pa.table({name: [row[i] for row in given] for i, name in enumerate(names)})
        report = writer.write(table.append_column("t", pa.array([0] * len(given))))
        return dict(report.rejected)

    wrong = ((None, 5, False), ("c", 6, None))
    rejected = write(("a", 1, False), ("a", 2, False), ("a", 3, True), ("b", 4, False), *wrong)
    assert rejected == {"bad_retraction": 1, "duplicate": 1, "missing_event_id": 1}
    now[0] += HOUR_MS - 1
    assert write(("a", 7, False), ("a", 8, True)) == {"duplicate": 2}
    now[0] += 1
    assert write(("a", 9, False)) == {}
    assert sorted(read_arrow(lake, ORDERS.table).column("n").to_pylist()) == [1, 3, 4, 9]
    aside = read_arrow(lake, ORDERS.rejected_table).to_pylist()
    assert sorted(json.loads(row["raw"])["n"] for row in aside) == [2, 5, 6, 7, 8]


def test_a_repeated_write_does_not_count_its_own_rows_as_duplicates(lake: Lake) -> None:
    lake.create(events_spec(ORDERS.table, ORDERS.schema))
    writer = EventWriter.of(lake, ORDERS, lambda: NOW_MS)
    table = pa.table({"order_id": ["a", "b"], "n": [1, 2], "gone": [False, False], "t": [0, 0]})
    for _ in range(2):
        writer.write(table, commit_user="producer", commit_identifier=1)
    assert read_arrow(lake, ORDERS.table).num_rows == 2
    assert read_arrow(lake, ORDERS.rejected_table).num_rows == 0


@pytest.mark.parametrize("seed", seeds(4))
def test_random_writes_keep_the_rows_that_a_loop_keeps(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    lake = Lake.open(tmp_path / "lake", "features")
    lake.create(events_spec(ORDERS.table, ORDERS.schema))
    lake.create(rejected_spec(ORDERS.rejected_table))
    now_ms, number = NOW_MS, 0
    writer = EventWriter.of(lake, ORDERS, lambda: now_ms)
    entered: list[tuple[int, tuple[str, bool], int]] = []
    for _ in range(5):
        now_ms += rng.choice((0, 1, HOUR_MS - 1, HOUR_MS, HOUR_MS // 2))
        names, gone, numbers = [], [], []
        for _ in range(rng.randint(1, 12)):
            names.append(rng.choice("abcdef"))
            gone.append(rng.random() < 0.3)
            numbers.append(number := number + 1)
            what = names[-1], gone[-1]
            if all(id_ != what or at <= now_ms - HOUR_MS for at, id_, _ in entered):
                entered.append((now_ms, what, number))
        rows = {"order_id": names, "n": numbers, "gone": gone, "t": [0] * len(names)}
        writer.write(pa.table(rows))
    kept = read_arrow(lake, ORDERS.table).column("n").to_pylist()
    assert sorted(kept) == [n for _, _, n in entered]
    assert len(kept) + read_arrow(lake, ORDERS.rejected_table).num_rows == number


def test_times_outside_the_years_1_to_9999_are_of_no_column(lake: Lake) -> None:
    lake.create(events_spec("events_ends", {"t": Int64, "ends": Timestamp}))
    writer = EventWriter(lake, "events_ends", "t", lambda: NOW_MS)
    ends = pa.array([1, 10**15, MIN_TIME_MS - 1, None], pa.timestamp("ms"))
    report = writer.write(pa.table({"t": [NOW_MS] * 4, "ends": ends}))
    assert (report.written, report.rejected) == (2, {"wrong_type": 2})
    rejected = read_arrow(lake, "rejected_ends")["raw"].to_pylist()
    assert sorted(json.loads(raw)["ends"] for raw in rejected) == [MIN_TIME_MS - 1, 10**15]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64(), pa.timestamp("s")])
def test_days_outside_the_years_1_to_9999_are_of_no_column(lake: Lake, kind: pa.DataType) -> None:
    lake.create(events_spec("events_ends", {"t": Int64, "ends": Date}))
    writer = EventWriter(lake, "events_ends", "t", lambda: NOW_MS)
    first, last = MIN_TIME_MS // DAY_MS, MAX_TIME_MS // DAY_MS
    days = [first - 1, first, last, last + 1, 10**7, None]
    unit = {pa.date32(): 1, pa.date64(): DAY_MS}.get(kind, 86_400)
    storage = pa.int32() if kind == pa.date32() else pa.int64()
    ends = pa.array([d and d * unit for d in days], storage).cast(kind)
    report = writer.write(pa.table({"t": [NOW_MS] * 6, "ends": ends}))
    kept = read_arrow(lake, "events_ends")["ends"]
    if kind == pa.timestamp("s"):  # a time is no day
        assert (report.written, report.rejected) == (1, {"wrong_type": 5})
    else:
        assert (report.written, report.rejected) == (3, {"wrong_type": 3})
        assert sorted(filter(None, kept.to_pylist())) == [date.min, date.max]


def test_two_columns_of_one_name_are_refused(writer: EventWriter) -> None:
    doubled = pa.table([[1], [2]], names=["time_ms", "time_ms"])
    with pytest.raises(TableError, match="two columns 'time_ms'"):
        writer.write(doubled)
