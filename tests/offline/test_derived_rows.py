"""Tumbling and session views over a real lake, compared with loops over the raw events."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paimon_features.core.errors import DefinitionError, RequestError
from paimon_features.core.types.schema import Bool, Float64, Int64, List, String, arrow_schema
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS, parse_duration
from paimon_features.definitions import (
    Definitions,
    DerivedView,
    Entity,
    EventSource,
    FeatureView,
    SessionView,
    TumblingView,
)
from paimon_features.definitions.aggregates import (
    Aggregate,
    Count,
    CountBy,
    DecayedCount,
    Rate,
    Sum,
    TimeSinceFirst,
    TopK,
    VectorSum,
)
from paimon_features.lake import read_arrow
from paimon_features.offline.derived_rows import DerivedRead
from paimon_features.offline.derived_table import refresh
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.tiler import event_rows
from tests import generators
from tests.offline.lake_of_views import LakeOfViews, partition_days
from tests.reference.derived_views import wrong_derived

SOURCE = EventSource("clicks", schema={"user": Int64, "t": Int64, "x": Float64}, event_time="t")
VISITS = FeatureView(
    "visits",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        Count(windows=["1d", "7d"]),
        Sum("x", windows=["1d"], scale=2),
        TimeSinceFirst(windows=["1d"]),
    ],
)
DAILY = TumblingView("daily", VISITS, "1d", features=[Count(), Sum("x", scale=2)])
SESSIONS = SessionView("sessions", VISITS, "30min", features=[Count()])
LATER = 90 * DAY_MS
"""Of an event that closes all windows before it."""


def clicks(*rows: tuple[int, int, float]) -> pa.Table:
    columns = dict(zip(("user", "t", "x"), zip(*rows, strict=True), strict=True))
    return pa.table({k: list(v) for k, v in columns.items()}, schema=arrow_schema(SOURCE.schema))


def read(lake: LakeOfViews, derived: DerivedView, **options: Any) -> DerivedRead:
    made = derived.compiled
    return DerivedRead(lake.lake, made, lake.generation(lake.view(made.view.name)), **options)


def rows(lake: LakeOfViews, derived: DerivedView, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in read(lake, derived, **options).table().to_pylist()]


def random_derived(rng: random.Random, view: FeatureView) -> tuple[FeatureView, DerivedView]:
    """A derived view of a view that has what it needs."""
    tile_ms = parse_duration(view.tile)
    bare: list[Aggregate] = [
        replace(one, windows=None, offset=None)
        for given in view.features
        for one in given.each()
        if not isinstance(one, Rate)  # sessions and calendar units have no length to divide by
    ]
    sessions = tile_ms == 1 or view.source.retraction is None
    if sessions and rng.random() < 0.5:
        if view.source.retraction is None:
            view = replace(view, features=[*view.features, TimeSinceFirst(windows=["30d"])])
        gaps = [
            g for g in ("1ms", "5min", "30min", "1h", "1d", "3d") if parse_duration(g) >= tile_ms
        ]
        return view, SessionView("derived", view, rng.choice(gaps), features=bare or [Count()])
    if rng.random() < 0.5:
        sizes = [s for s in ("5min", "1h", "1d", "7d") if parse_duration(s) % tile_ms == 0]
        return view, TumblingView("derived", view, rng.choice(sizes))
    size, zone = rng.choice(("day", "week", "month", "year")), rng.choice(generators.ZONES)
    return view, TumblingView("derived", view, size, features=bare or [Count()], time_zone=zone)


def check_random(seed: int, folder: Path) -> None:
    rng = random.Random(seed)
    view, derived = random_derived(rng, generators.random_view(rng, offline_only=True))
    events = random_events(rng, view, 60)
    lake = LakeOfViews(folder, view, partition_days=partition_days(seed))
    cut = rng.randrange(1, events.num_rows)
    for part in (events[:cut], events[cut:]):
        lake.commit(part)
    memory_mb = rng.choice((1024, 0.001))
    found = read(lake, derived, include_open=True, memory_mb=memory_mb)
    assert not wrong_derived(derived, event_rows(events), event_rows(found.table()))
    closed = read(lake, derived, memory_mb=1024).table()
    made = derived.compiled
    ended = [row for row in found.table().to_pylist() if row[made.end] <= found.newest_ms]
    assert repr(closed.to_pylist()) == repr(ended)
    parts = _in_two(rng, lake, derived, found.table().column(made.start).to_pylist())
    assert repr(parts) == repr(found.table().to_pylist())


def _in_two(
    rng: random.Random, lake: LakeOfViews, derived: DerivedView, starts: list[int]
) -> list[dict[str, Any]]:
    """The rows of two ranges that meet, at a start or anywhere."""
    if not starts:
        return []
    at = rng.choice(starts) + rng.choice((0, 0, 1, -1, rng.randrange(-DAY_MS, DAY_MS)))
    both = ({"to_ms": at}, {"from_ms": at})
    tables = [read(lake, derived, include_open=True, **part).table() for part in both]
    return pa.concat_tables(tables).to_pylist()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=settings().max_examples // 10)  # more where the profile has more
def test_random_derived_views_equal_loops_over_the_events(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_random(seed, Path(folder))


def test_a_window_has_a_row_if_it_holds_an_event(tmp_path: Path) -> None:
    #  events    a               b  c
    #  days   [0------)[1------)[2------)
    lake = LakeOfViews(tmp_path, VISITS)
    late = 3 * DAY_MS - 1
    lake.commit(clicks((1, 0, 1.25), (1, 2 * DAY_MS, 2.0), (1, late, 0.5), (2, LATER, 0.0)))
    assert rows(lake, DAILY) == [
        (1, 0, DAY_MS, 1, 1.25),
        (1, 2 * DAY_MS, 3 * DAY_MS, 2, 2.5),
    ]


def test_a_window_is_open_until_an_event_at_its_end(tmp_path: Path) -> None:
    lake = LakeOfViews(tmp_path, VISITS)
    lake.commit(clicks((1, 0, 1.0), (1, DAY_MS - 1, 1.0)))
    assert rows(lake, DAILY) == []
    assert rows(lake, DAILY, include_open=True) == [(1, 0, DAY_MS, 2, 2.0)]
    lake.commit(clicks((2, DAY_MS, 1.0)))
    assert rows(lake, DAILY) == [(1, 0, DAY_MS, 2, 2.0)]


def test_events_a_gap_apart_are_in_two_sessions(tmp_path: Path) -> None:
    gap = 30 * MINUTE_MS
    lake = LakeOfViews(tmp_path, VISITS)
    lake.commit(clicks((1, 7, 0.0), (1, 6 + gap, 0.0), (1, 6 + 2 * gap, 0.0), (2, LATER, 0.0)))
    assert rows(lake, SESSIONS) == [
        (1, 7, 6 + 2 * gap, 2, 2),
        (1, 6 + 2 * gap, 6 + 3 * gap, 1, 1),
    ]


def test_a_late_event_makes_two_sessions_one(tmp_path: Path) -> None:
    lake = LakeOfViews(tmp_path, VISITS)
    lake.commit(clicks((1, 0, 0.0), (1, HOUR_MS - 2, 0.0), (2, LATER, 0.0)))
    assert [row[1] for row in rows(lake, SESSIONS)] == [0, HOUR_MS - 2]
    lake.commit(clicks((1, HOUR_MS // 2 - 1, 0.0)))
    assert rows(lake, SESSIONS) == [(1, 0, 3 * HOUR_MS // 2 - 2, 3, 3)]


def test_a_session_belongs_to_the_range_that_it_starts_in_however_long_it_is(
    tmp_path: Path,
) -> None:
    # an event every 20 minutes for 20 days
    times = range(0, 20 * DAY_MS, 20 * MINUTE_MS)
    lake = LakeOfViews(tmp_path, VISITS)
    lake.commit(clicks(*((1, t, 0.0) for t in times), (2, LATER, 0.0)))
    whole = (1, 0, times[-1] + HOUR_MS // 2, len(times), len(times))
    assert rows(lake, SESSIONS, to_ms=1) == [whole]
    assert rows(lake, SESSIONS, from_ms=0, to_ms=DAY_MS, memory_mb=0.001) == [whole]
    assert rows(lake, SESSIONS, from_ms=1, to_ms=30 * DAY_MS) == []


def test_a_local_day_lasts_as_long_as_the_clocks_say(tmp_path: Path) -> None:
    # London, 30 and 31 March 2013: clocks go from 01:00 to 02:00 on the 31st
    spring = 1_364_601_600_000  # 2013-03-30T00:00Z
    days = TumblingView("days", VISITS, "day", time_zone="Europe/London", features=[Count()])
    lake = LakeOfViews(tmp_path, VISITS)
    lake.commit(clicks(*((1, spring + h * HOUR_MS, 0.0) for h in range(24 * 3))))
    assert [row[1:] for row in rows(lake, days)] == [
        (spring, spring + DAY_MS, 24),
        (spring + DAY_MS, spring + 2 * DAY_MS - HOUR_MS, 23),
        (spring + 2 * DAY_MS - HOUR_MS, spring + 3 * DAY_MS - HOUR_MS, 24),
    ]


def test_decay_counts_to_the_end_of_the_window(tmp_path: Path) -> None:
    view = replace(VISITS, features=[DecayedCount(half_life="12h", windows=["1d"])])
    lake = LakeOfViews(tmp_path, view)
    lake.commit(clicks((1, 0, 0.0), (1, 12 * HOUR_MS, 0.0), (1, DAY_MS, 0.0)))
    (row,) = rows(lake, TumblingView("daily", view, "1d"))
    assert row[3] == pytest.approx(0.25 + 0.5, rel=1e-12)


RETRACTED = EventSource(
    "orders", schema={"user": Int64, "t": Int64, "gone": Bool}, event_time="t", retraction="gone"
)


def orders(*rows: tuple[int, int, bool]) -> pa.Table:
    columns = dict(zip(("user", "t", "gone"), zip(*rows, strict=True), strict=True))
    schema = arrow_schema(RETRACTED.schema)
    return pa.table({k: list(v) for k, v in columns.items()}, schema=schema)


def test_a_window_whose_events_were_all_retracted_has_no_row(tmp_path: Path) -> None:
    view = replace(VISITS, source=RETRACTED, features=[Count(windows=["1d"])])
    daily = TumblingView("daily", view, "1d")
    lake = LakeOfViews(tmp_path, view)
    lake.commit(orders((1, 5, False), (1, DAY_MS, False), (1, DAY_MS + 1, False)))
    lake.commit(orders((1, 5, True), (1, DAY_MS, True), (2, LATER, False)))
    assert rows(lake, daily) == [(1, DAY_MS, 2 * DAY_MS, 1)]


def test_a_retracted_event_parts_the_sessions_that_it_joined(tmp_path: Path) -> None:
    view = replace(VISITS, source=RETRACTED, tile="1ms", features=[Count(windows=["1d"])])
    sessions = SessionView("sessions", view, "10ms")
    lake = LakeOfViews(tmp_path, view)
    lake.commit(orders((1, 0, False), (1, 9, False), (1, 18, False), (2, LATER, False)))
    assert rows(lake, sessions) == [(1, 0, 28, 3, 3)]
    lake.commit(orders((1, 9, True)))
    assert rows(lake, sessions) == [(1, 0, 10, 1, 1), (1, 18, 28, 1, 1)]
    lake.commit(orders((1, 0, True), (1, 18, True)))
    assert rows(lake, sessions) == []


def test_a_derived_view_brings_its_view_along_and_needs_a_name_of_its_own() -> None:
    found = Definitions.of([SESSIONS])
    assert (found.derived_view("sessions"), found.view("visits")) == (SESSIONS, VISITS)
    with pytest.raises(DefinitionError, match="a derived view has the name of a view, 'visits'"):
        Definitions.of([TumblingView("visits", VISITS, "1d")])


def test_a_rate_over_a_fixed_size_is_per_unit_of_it(tmp_path: Path) -> None:
    view = replace(VISITS, features=[Rate(per="1h", windows=["7d"])])
    lake = LakeOfViews(tmp_path, view)
    lake.commit(clicks((1, 0, 0.0), (1, 1, 0.0), (1, DAY_MS, 0.0)))
    given = TumblingView("daily", view, "12h", features=[Rate(per="1h", windows=["12h"])])
    for derived in (given, TumblingView("daily", view, "12h")):
        assert rows(lake, derived) == [(1, 0, 12 * HOUR_MS, 2 / 12)]
    with pytest.raises(DefinitionError) as caught:
        TumblingView("daily", view, "day", time_zone="UTC")
    assert "pass features= without this aggregate" in caught.value.__notes__


def test_a_view_without_tiles_has_no_rows(tmp_path: Path) -> None:
    lake = LakeOfViews(tmp_path, VISITS)
    for derived in (DAILY, SESSIONS):
        found = read(lake, derived).table()
        assert found.num_rows == 0
        assert found.column_names == list(derived.compiled.columns)


def test_rows_come_by_start_and_keys_and_a_stream_has_the_same(tmp_path: Path) -> None:
    rng = random.Random(5)
    lake = LakeOfViews(tmp_path, VISITS)
    events = [(rng.randrange(50), rng.randrange(9 * DAY_MS), 1.0) for _ in range(500)]
    lake.commit(clicks(*events))
    table = read(lake, DAILY, include_open=True).table()
    order = list(zip(table["window_start_ms"].to_pylist(), table["user"].to_pylist(), strict=True))
    assert order == sorted(order)
    stream = read(lake, DAILY, include_open=True, memory_mb=0.001).reader()
    assert pa.Table.from_batches(stream, table.schema).equals(table)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"from_ms": 5, "to_ms": 5}, "from 5 to 5 ms: expected a time between them"),
        ({"memory_mb": 0}, "expected more than 0"),
    ],
)
def test_a_range_without_time_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        read(LakeOfViews(tmp_path, VISITS), DAILY, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingView("d", VISITS, "7min"), "not a multiple of the view's tile, 5min"),
        (lambda: TumblingView("d", VISITS, "today"), "neither a calendar unit .day, week"),
        (lambda: TumblingView("d", VISITS, "day"), "give a time_zone="),
        (lambda: TumblingView("d", VISITS, "1d", time_zone="UTC"), "has no effect"),
        (lambda: TumblingView("d", VISITS, "day", time_zone="UCT+1"), "IANA"),
        (lambda: TumblingView("d", VISITS, "1d", features=[]), "features=.."),
        (lambda: TumblingView("d", VISITS, "1d", features=[Count(windows=["7d"])]), "leave both"),
        (
            lambda: TumblingView("d", VISITS, "1d", features=[Sum("x")]),
            "sum_x: the tiles of feature view 'visits' do not contain p_sum_x; add this aggregate",
        ),
        (
            lambda: TumblingView("d", VISITS, "1d", features=[Sum("x", scale=2, bound=5.0)]),
            "would skip other events",
        ),
        (
            lambda: TumblingView("d", VISITS, "1d", features=[Count(), Count(name="user")]),
            "two columns are named 'user'",
        ),
        (lambda: SessionView("s", VISITS, "1min"), "shorter than the view's tile, 5min"),
        (
            lambda: SessionView("s", replace(VISITS, features=[Count(windows=["1d"])]), "30min"),
            "add pf.TimeSinceFirst",
        ),
        (
            lambda: SessionView(
                "s", replace(VISITS, source=RETRACTED, features=[Count(windows=["1d"])]), "30min"
            ),
            "a view with tile='1ms' does",
        ),
    ],
)
def test_a_derived_view_that_its_tiles_cannot_tell_is_refused(make: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        make()
    assert any("in derived view" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_any_type_are_in_the_table_as_they_were_derived(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    view, derived = random_derived(rng, generators.random_view(rng, offline_only=True))
    events = random_events(rng, view, 40)
    lake = LakeOfViews(tmp_path, view)
    lake.commit(events)
    made = derived.compiled
    record = lake.generation(view.compiled)
    first = refresh(lake.lake, made, record, include_open=True)
    order = [(name, "ascending") for name in (made.start, *made.view.keys)]
    table = read_arrow(lake.lake, made.table, [*made.columns]).sort_by(order)
    assert repr(table.to_pylist()) == repr(
        read(lake, derived, include_open=True).table().to_pylist()
    )
    again = refresh(lake.lake, made, record, include_open=True, memory_mb=0.001)
    assert (again.days_written, again.days_emptied) == (0, 0)
    assert (again.rows, again.snapshot_id) == (first.rows, first.snapshot_id)


def test_vectors_maps_and_lists_are_in_the_table(tmp_path: Path) -> None:
    source = replace(SOURCE, schema={**SOURCE.schema, "word": String, "vec": List(Float64, 2)})
    view = replace(
        VISITS,
        source=source,
        features=[
            CountBy("word", values=["a"], windows=["1d"]),
            TopK("x", n=2, windows=["1d"]),
            VectorSum("vec", windows=["1d"]),
        ],
    )
    lake = LakeOfViews(tmp_path, view)
    row = {"user": 1, "t": 0, "x": 1.5, "word": "a", "vec": [1.0, 2.0]}
    lake.commit(pa.Table.from_pylist([row], schema=arrow_schema(source.schema)))
    made = TumblingView("daily", view, "1d").compiled
    for expected in (1, 0):
        done = refresh(lake.lake, made, lake.generation(view.compiled), include_open=True)
        assert done.days_written == expected
    (found,) = read_arrow(lake.lake, made.table, [f.name for f in made.features]).to_pylist()
    assert [*found.values()] == [[("a", 1), ("other", 0)], [1.5], [1.0, 2.0]]
