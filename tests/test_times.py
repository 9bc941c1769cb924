"""One event, one time, whatever its unit, zone or container, at every entrance."""

from __future__ import annotations

import datetime as dt
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paimon_features as pf
from paimon_features.core.columns.column import Column, one_array
from paimon_features.core.errors import RequestError, TransformError
from paimon_features.core.times.utc_ms import conform, utc_ms
from paimon_features.core.types.schema import DataType, Float64, Int64, Timestamp
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions.request import request_columns
from paimon_features.definitions.request_values import parser_of_text
from paimon_features.iteration.algorithms import EventTimeTumblingWindows, OnlineStandardScaler
from paimon_features.lake import Lake, append_arrow, read_arrow
from paimon_features.lake.specs import events_spec
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.offline.inputs.checked_columns import event_times
from paimon_features.offline.inputs.row_source import arrow_table
from paimon_features.offline.local.features import features
from paimon_features.project.monitoring.feature_values import in_range
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.serving.client.core import _arrow_request
from paimon_features.serving.client.requests import ClientRequest
from paimon_features.testing.sizes import every_seed
from paimon_features.transformers.in_memory.decay import _ages
from tests.shop_projects import make_project
from trainer_bridge.blocks.predicates import RowFilter
from trainer_bridge.feedback.rows import to_arrow

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
NOW_MS = 2_000_000_000_000
EPOCH = dt.date(1970, 1, 1)


FEATURES = """
import paimon_features as pf

v = pf.FeatureView(
    "v",
    source=pf.EventSource("s", schema={"user": pf.Int64, "t": pf.Int64}, event_time="t"),
    entity=pf.Entity("user", keys={"user": pf.Int64}),
    features=[pf.Count(windows=["1d"])],
)
"""


def columns_of(rng: random.Random) -> Iterator[tuple[str, Any, list[int]]]:
    """Columns of three times in every unit, zone and container, and their UTC milliseconds."""
    for unit, per_second in PER_SECOND.items():
        ticks = [rng.randrange(-(10**9) * per_second, 10**9 * per_second) for _ in range(3)]
        # by hand: the greatest millisecond that is not after the tick, before 1970 too
        expected = [tick * 1000 // per_second for tick in ticks]
        for zone in (None, "UTC", "America/New_York"):
            array = pa.array(ticks, pa.timestamp(unit, zone))
            yield f"Arrow {array.type}", array, expected
            yield f"pandas {array.type}", array.to_pandas(), expected
            if unit != "s":
                yield f"Polars {array.type}", pl.from_arrow(array), expected
        yield f"NumPy {unit}", np.array(ticks, f"datetime64[{unit}]"), expected
        scalars = [np.datetime64(tick, unit) for tick in ticks]
        yield f"NumPy scalars {unit}", scalars, expected
        yield f"NumPy objects {unit}", np.array(scalars, object), expected
    days = [rng.randrange(-10_000, 10_000) for _ in range(3)]
    dates = pa.array(days, pa.date32())
    midnights = [day * DAY_MS for day in days]
    yield "Arrow date32", dates, midnights
    yield "Arrow date64", dates.cast(pa.date64()), midnights
    yield "Python dates", [EPOCH + dt.timedelta(day) for day in days], midnights
    yield "NumPy days", np.array(days, "datetime64[D]"), midnights
    yield "integers", midnights, midnights
    yield "int32", pa.array([1, 2, -3], pa.int32()), [1, 2, -3]


def no_times() -> Iterator[tuple[str, Any]]:
    """Columns of three values that are no points in time, or not known to be."""
    for unit in PER_SECOND:
        yield f"NumPy duration {unit}", np.array([1, 2, 3], f"timedelta64[{unit}]")
        yield f"Arrow duration {unit}", pa.array([1, 2, 3], pa.duration(unit))
        durations = [np.timedelta64(n, unit) for n in (1, 2, 3)]
        yield f"NumPy durations {unit}", durations
        yield f"NumPy duration objects {unit}", np.array(durations, object)
    yield "Python durations", [dt.timedelta(n) for n in (1, 2, 3)]
    yield "pandas durations", pd.Series(pd.to_timedelta([1, 2, 3]))
    for frequency in ("D", "M", "h"):
        periods = pd.period_range("2024-03-10", periods=3, freq=frequency)
        yield f"pandas periods {frequency}", pd.Series(periods)
        yield f"Arrow periods {frequency}", pa.array(periods)
    yield "Python times of day", [dt.time(n) for n in (1, 2, 3)]
    yield "Arrow intervals", pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval())
    yield "NumPy booleans", np.array([True, False, True])
    yield "Python booleans", [True, False, True]


@pytest.mark.parametrize("what", [name for name, _ in no_times()])
def test_what_is_no_time_is_an_error_at_every_entrance(what: str, tmp_path: Path) -> None:
    given = dict(no_times())[what]
    table = arrow_table(frame(given, "t", user=[1, 2, 3], x=[0, 0, 0]))
    array = one_array(table.column("t"))
    rows = {"user": [1], "event_time_ms": [5]}
    for kind in (Int64, Timestamp):
        for event_time in (True, False) if "bool" not in what else (True,):
            with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
                conform(array, kind.arrow, event_time=event_time)
    with pytest.raises(RequestError):
        features(view_of(Int64), table, rows)
    with pytest.raises(RequestError):
        event_times(table.rename_columns(["event_time_ms", "user", "x"]))
    with pytest.raises(RequestError):
        request_columns({"x": Timestamp}, {"x": given}, 3)
    lake = Lake.open(tmp_path, "features")
    lake.create(events_spec("events_s", {"t": Int64, "user": Int64, "x": Int64}))
    report = EventWriter(lake, "events_s", "t", lambda: NOW_MS).write(table)
    assert (report.written, report.rejected) == (0, {"wrong_type": 3})
    if "bool" in what:  # as an input of the server it is a boolean
        return
    for kind in (pa.int64(), pa.timestamp("ms")):
        with pytest.raises(RequestError):
            to_arrow(given, kind, "key")
    for sent in (given, given[0]):
        with pytest.raises(RequestError):
            ClientRequest.of("s", {"user": [1, 2, 3]}, None, {"x": sent}, False).body()
    with pytest.raises(RequestError):
        ClientRequest.of("s", {"x": given}, None, None, False).body()


def test_a_period_that_crossed_a_process_without_pandas_is_an_error_of_the_server() -> None:
    periods = pa.array(pd.period_range("2024-03-10", periods=2, freq="D"))
    with pytest.raises(RequestError, match="column 'x' is of the extension type 'pandas.period'"):
        _arrow_request("s", pa.table({"x": periods}), None, False)
    # as Arrow reads it where the type is not registered: integers, and the name in the metadata
    known = {"ARROW:extension:name": "pandas.period", "ARROW:extension:metadata": '{"freq": "D"}'}
    table = pa.table([periods.storage], pa.schema([pa.field("x", pa.int64(), metadata=known)]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    script = (
        "import sys, pyarrow as pa\n"
        "from paimon_features.serving.http.bodies.arrow_body import read_columns\n"
        "from paimon_features.serving.http.http_errors import RequestRejected\n"
        "try: print(read_columns(sys.stdin.buffer.read()))\n"
        "except RequestRejected as error: print(error)\n"
    )
    body = sink.getvalue().to_pybytes()
    done = subprocess.run([sys.executable, "-c", script], input=body, capture_output=True)
    assert b"'pandas.period'" in done.stdout, done


@every_seed(4)
@pytest.mark.parametrize("unit", PER_SECOND)
def test_times_in_lists_and_maps_follow_the_same_rule(unit: str, seed: int) -> None:
    rng = random.Random(f"{unit} {seed}")
    per_second = PER_SECOND[unit]

    def tick() -> int | None:
        span = 10**9 * per_second
        return rng.choice([None, rng.randrange(-span, span), rng.randrange(-span, span)])

    lists = [rng.choice([None, [tick() for _ in range(rng.randrange(4))]]) for _ in range(9)]
    in_ms = [x and [None if t is None else t * 1000 // per_second for t in x] for x in lists]
    given = pa.array(lists, pa.list_(pa.int64())).cast(pa.list_(pa.timestamp(unit, "Asia/Tokyo")))
    kind = given.type.value_type
    start, stop = sorted(rng.sample(range(10), 2))
    wanted = in_ms[start:stop]
    for array in (given, given.cast(pa.large_list(kind)), one_array(pa.chunked_array([given]))):
        part = array.slice(start, stop - start)
        assert conform(part, pa.list_(pa.int64())).to_pylist() == wanted
        times = conform(part, pa.list_(pa.timestamp("ms")))
        assert times.type == pa.list_(pa.timestamp("ms"))
        assert times.cast(pa.list_(pa.int64())).to_pylist() == wanted
    nested = pa.array([[x] for x in lists], pa.list_(pa.list_(pa.int64())))
    nested = nested.cast(pa.list_(given.type)).slice(start, stop - start)
    found = conform(nested, pa.list_(pa.list_(pa.int64()))).to_pylist()
    assert found == [[x] for x in wanted]
    named = [x and [(str(n), t) for n, t in enumerate(x)] for x in lists]
    maps = pa.array(named, pa.map_(pa.string(), pa.timestamp(unit))).slice(start, stop - start)
    expected = [x and [(str(n), t) for n, t in enumerate(x)] for x in wanted]
    assert conform(maps, pa.map_(pa.string(), pa.int64())).to_pylist() == expected


@pytest.mark.parametrize(
    "kind", [pa.duration("ns"), pa.time64("us"), pa.array(pd.period_range("2024", periods=1)).type]
)
def test_lists_of_what_is_no_time_are_rejected(kind: pa.DataType) -> None:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    items = pa.array([1, 2], pa.int64()).view(storage)
    if storage is not kind:
        items = pa.ExtensionArray.from_storage(kind, items)
    lists = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), items)
    for item in (pa.int64(), pa.timestamp("ms")):
        with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
            conform(lists, pa.list_(item))


def test_lists_of_times_are_stored_as_milliseconds(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, "features")
    columns = {"user": Int64, "t": Int64, "xs": pf.List(Int64), "ts": pf.List(Timestamp)}
    lake.create(events_spec("events_s", columns))
    times = pa.array([[dt.datetime(2024, 1, 1, microsecond=123_456)]], pa.list_(pa.timestamp("us")))
    rows = pa.table({"user": [1], "t": [1], "xs": times, "ts": times})
    report = EventWriter(lake, "events_s", "t", lambda: NOW_MS).write(rows)
    assert (report.written, report.rejected) == (1, {})
    durations = rows.set_column(2, "xs", pa.array([[dt.timedelta(1)]]))
    report = EventWriter(lake, "events_s", "t", lambda: NOW_MS).write(durations)
    assert (report.written, report.rejected) == (0, {"wrong_type": 1})
    day = pa.array([0], pa.int32())
    added = {"event_day": day, "ingest_time_ms": pa.array([0])}
    append_arrow(lake, "events_s", pa.table({**dict(rows.to_pydict()), **added, "xs": times}))
    for row in read_arrow(lake, "events_s").to_pylist():
        assert row["xs"] == [1_704_067_200_123]
        assert row["ts"] == [dt.datetime(2024, 1, 1, microsecond=123_000)]


def test_parts_of_entity_rows_may_have_times_of_other_units(tmp_path: Path) -> None:
    for number, kind in enumerate((pa.int64(), pa.timestamp("ns"), pa.timestamp("s"))):
        second = pa.array([7], pa.timestamp("s"))
        times = pa.array([7_000]) if kind == pa.int64() else second.cast(kind)
        table = pa.table({"user": [number], "event_time_ms": times})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    for first in ("0", "1"):
        (tmp_path / f"{first}.parquet").rename(tmp_path / f"a{first}.parquet")
        table = arrow_table(str(tmp_path / "*.parquet"))
        assert set(event_times(table).tolist()) == {7_000}
        (tmp_path / f"a{first}.parquet").rename(tmp_path / f"z{first}.parquet")


def frame(times: Any, name: str, **columns: Any) -> Any:
    """A frame of the times' own library with a column of times and others."""
    if isinstance(times, pl.Series):
        return pl.DataFrame({name: times, **columns})
    if isinstance(times, pd.Series):
        return pd.DataFrame({name: times, **columns})
    return pa.table({name: times, **columns})


def view_of(kind: DataType) -> pf.FeatureView:
    source = pf.EventSource("s", schema={"user": Int64, "t": Int64, "x": kind}, event_time="t")
    entity = pf.Entity("user", keys={"user": Int64})
    where = "x >= TIMESTAMP '1900-01-01 00:00:00'" if kind is Timestamp else None
    return pf.FeatureView(
        "v",
        source=source,
        entity=entity,
        features=[pf.Count(windows=["1d"]), pf.Last("t", windows=["1d"], name="at")],
        where=where,
    )


@every_seed(1)
def test_every_entrance_reads_the_same_milliseconds(seed: int) -> None:
    view = view_of(Int64)
    keep = None
    for what, given, expected in columns_of(random.Random(seed)):
        label = f"{what}: {given}"
        array = arrow_table(frame(given, "t")).column("t").combine_chunks()
        assert utc_ms(array).to_pylist() == expected, label
        assert event_times(arrow_table(frame(given, "event_time_ms"))).tolist() == expected, label
        ages = [max(expected) - time for time in expected]
        if what not in ("integers", "int32"):
            assert Column.from_arrow(conform(array, pa.timestamp("ms"))).values.tolist() == expected
            inputs = request_columns({"x": Timestamp}, {"x": given}, 3)["x"]
            assert inputs.values.tolist() == expected, label
        if pa.types.is_timestamp(array.type):
            assert Column.from_arrow(array).values.tolist() == expected, label
            assert _ages(given, 3).tolist() == ages, label
            rows = pa.table({"t": array})
            keep = RowFilter("t < TIMESTAMP '1970-01-01 00:00:00'", rows.schema, table="x")
            assert keep.mask(rows).tolist() == [time < 0 for time in expected], label
        rows = arrow_table(frame(given, "event_time_ms"))
        within = TimeRange(min(expected), max(expected))
        inside = [min(expected) <= time < max(expected) for time in expected]
        assert len(in_range(rows, within)) == sum(inside), label
        if "UTC" in what:  # of the zones, one is enough for a statement of DuckDB each
            continue
        # an event is in the window of a row one millisecond later, and not in that of its own time
        events = frame(given, "t", user=[1, 2, 3], x=[0, 0, 0])
        later = {
            "user": [1, 2, 3, 1, 2, 3],
            "event_time_ms": [t + 1 for t in expected] + list(expected),
        }
        found = features(view, events, later)
        assert found.column("count_1d").to_pylist() == [1] * 3 + [None] * 3, label
        assert found.column("at_1d").to_pylist()[:3] == (expected), label
    assert keep is not None


@every_seed(1)
def test_clients_send_the_same_milliseconds(seed: int) -> None:
    for what, given, expected in columns_of(random.Random(seed)):
        users, single = [1, 2, 3], given[0]
        for sent, wanted in ((given, expected), (single, expected[:1] * 3)):
            request = ClientRequest.of("s", {"user": users}, None, {"x": sent}, False)
            found = json.loads(request.body())["request"]["x"]
            listed = found if isinstance(found, list) else [found] * 3
            inputs = request_columns({"x": Timestamp}, {"x": [_parsed(v) for v in listed]}, 3)
            assert inputs["x"].values.tolist() == wanted, f"{what}: {sent}"
        for entities in ({"user": users, "x": given}, frame(given, "x", user=users)):
            if isinstance(given, pd.Series | pl.Series) and not isinstance(entities, dict):
                entities = arrow_table(entities)
            _, body = _arrow_request("s", entities, None, False)
            column = pa.ipc.open_stream(body).read_all().column("x").combine_chunks()
            if what not in ("integers", "int32"):
                inputs = request_columns({"x": Timestamp}, {"x": column}, 3)
                assert inputs["x"].values.tolist() == expected, f"{what}: {given}"


def _parsed(value: Any) -> Any:
    """What the feature server reads from JSON."""
    parse = parser_of_text(Timestamp)
    assert parse is not None
    return parse(value) if isinstance(value, str) else value


def test_clients_send_missing_times_as_nulls() -> None:
    for given in (
        np.array(["NaT"], "datetime64[ns]"),
        pd.Series([pd.NaT]),
        pl.Series([None], dtype=pl.Datetime("us")),
        pa.array([None], pa.timestamp("ns")),
        pa.scalar(None, pa.timestamp("s", "UTC")),
        np.datetime64("NaT", "ns"),
        pd.NaT,
    ):
        body = ClientRequest.of("s", {"user": [1]}, None, {"x": given}, False).body()
        assert json.loads(body)["request"]["x"] in ([None], None), given


@every_seed(1)
def test_feedback_and_the_online_scaler_read_the_same_milliseconds(seed: int) -> None:
    for what, given, expected in columns_of(random.Random(seed)):
        label = f"{what}: {given}"
        for kind in (pa.int64(), pa.timestamp("ms")):
            assert to_arrow(given, kind, "key").cast(pa.int64()).to_pylist() == expected, label
        for kind in (pa.float64(), pa.bool_()):
            if what not in ("integers", "int32"):
                with pytest.raises(RequestError, match="expected"):
                    to_arrow(given, kind, "loss")
        # in the order of times, one window of a millisecond each
        order = sorted(range(3), key=expected.__getitem__)
        times = pa.array(arrow_table(frame(given, "t")).column("t").combine_chunks()).take(order)
        table = pa.table({"timestamp": times, "input": [[0.0], [1.0], [2.0]]})
        versions = OnlineStandardScaler(windows=EventTimeTumblingWindows(1)).fit(table)
        found = [version.model_data["timestamp"] for version in versions]
        assert found == sorted(set(expected)), label


def test_times_of_the_online_scaler_are_times() -> None:
    scaler = OnlineStandardScaler(windows=EventTimeTumblingWindows(1))
    for times in (pa.array([1], pa.duration("s")), pa.array([1.5]), pa.array([None], pa.int64())):
        with pytest.raises(TransformError, match="'timestamp' is not a column of times"):
            scaler.fit(pa.table({"timestamp": times, "input": [[1.0]]}))


@every_seed(1)
def test_training_sets_are_of_the_same_milliseconds(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / str(seed)
    folder.mkdir()
    project = make_project(folder, FEATURES, '[project]\nname = "times"\n')
    given = list(columns_of(random.Random(seed)))
    rng = random.Random(seed)
    source = project.definitions.source("s")
    for what, times, expected in rng.sample(given, 4):
        # an event is in the window of the row one millisecond later, not in that of its own time
        writer = EventWriter.of(project.lake, source, clock=lambda: NOW_MS)
        user = rng.randrange(10**9)
        writer.write(arrow_table(frame(times, "t", user=[user, user + 1, user + 2])))
        project.jobs.backfill("v", rebuild=True)
        own = frame(times, "event_time_ms", user=[user, user + 1, user + 2])
        later = {"user": [user, user + 1, user + 2], "event_time_ms": [t + 1 for t in expected]}
        for rows, count in ((own, [None] * 3), (later, [1] * 3)):
            built = project.build_training_set("rows", "v", rows, replace=True)
            table = read_arrow(project.lake, built.table).sort_by("user")
            wanted = expected if rows is own else later["event_time_ms"]
            stored = utc_ms(one_array(table.column("event_time_ms")))
            assert stored.to_pylist() == wanted, what
            assert table.column("count_1d").to_pylist() == count, what


@every_seed(1)
def test_the_event_writer_stores_the_same_milliseconds(seed: int, tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / f"warehouse{seed}", "features")
    for kind in (Int64, Timestamp):
        lake.create(events_spec(f"events_{kind.text}", {"n": Int64, "t": kind}))
    numbers: dict[str, list[int]] = {"int64": [], "timestamp": []}
    for kind in (Int64, Timestamp):
        tables = []
        for what, given, expected in columns_of(random.Random(seed)):
            first = len(numbers[kind.text])
            table = arrow_table(frame(given, "t", n=[first, first + 1, first + 2]))
            tables.append((what, table))
            numbers[kind.text] += expected
        writer = EventWriter(lake, f"events_{kind.text}", "t", lambda: NOW_MS)
        for what, table in tables:
            report = writer.write(table)
            assert (report.written, report.rejected) == (3, {}), what
        stored = read_arrow(lake, f"events_{kind.text}").sort_by("n").column("t").cast(pa.int64())
        assert stored.to_pylist() == numbers[kind.text]


@pytest.mark.parametrize("kind", [pa.duration("s"), pa.time64("us"), pa.time32("s")])
def test_what_is_no_point_in_time_is_rejected(kind: pa.DataType, tmp_path: Path) -> None:
    array = pa.array([1, 2, 3], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    events = pa.table({"t": array, "user": [1, 2, 3], "x": [0, 0, 0]})
    with pytest.raises(RequestError, match="not a point in time"):
        features(view_of(Int64), events, {"user": [1], "event_time_ms": [5]})
    with pytest.raises(RequestError, match="not a time"):
        event_times(pa.table({"event_time_ms": array}))
    lake = Lake.open(tmp_path, "features")
    lake.create(events_spec("events_s", {"t": Int64, "user": Int64, "x": Int64}))
    report = EventWriter(lake, "events_s", "t", lambda: NOW_MS).write(events)
    assert (report.written, report.rejected) == (0, {"wrong_type": 3})


def test_times_in_columns_of_other_types_are_rejected() -> None:
    times = pa.array([1], pa.timestamp("us"))
    for kind in (Float64.arrow, pa.string(), pa.int32(), pa.date32()):
        with pytest.raises(pa.ArrowInvalid, match="timestamp"):
            conform(times, kind)
    with pytest.raises(pa.ArrowInvalid, match="times are read into"):
        conform(pa.array([1], pa.date32()), pa.int64())


def test_times_beyond_the_range_are_rejected() -> None:
    far = pa.array([2**62], pa.timestamp("s"))
    with pytest.raises(RequestError, match="years 1 to 9999"):
        event_times(pa.table({"event_time_ms": far}))
    events = pa.table({"t": far, "user": [1], "x": [0]})
    with pytest.raises(RequestError, match="the column 't'"):
        features(view_of(Int64), events, {"user": [1], "event_time_ms": [5]})
