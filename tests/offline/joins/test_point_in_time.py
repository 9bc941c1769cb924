"""The point-in-time join equals the oracle on random definitions, events and times."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.types.schema import Float64, Int64, String, arrow_schema
from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import Count, DecayedSum, Last, Sum
from paimon_features.offline.joins.point_in_time import JoinResult, PointInTimeJoin
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import Entered, answer, entered
from paimon_features.testing.reference.tiler import event_rows, tile_table
from paimon_features.testing.sizes import cases
from tests import generators

SOURCE = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "x": Float64, "word": String}, event_time="t"
)
USER = Entity("user", keys={"user": Int64})


def view_of(*features: Any, **options: Any) -> FeatureView:
    return FeatureView("v", source=SOURCE, entity=USER, features=features, **options)


def join(
    view: FeatureView,
    events: pa.Table,
    keys: pa.Table,
    as_of_ms: Sequence[int],
    tiles: Sequence[pa.Table] | None = None,
) -> JoinResult:
    """The join over in-memory tables; tiles made by the naive tiler unless they are given."""
    compiled = view.compiled
    work = PointInTimeJoin(compiled, compiled.features, keys, np.array(as_of_ms, np.int64))
    days = set(work.edge_days.tolist())
    times = events.column(view.source.event_time).to_pylist()
    needed = [t is not None and t // DAY_MS in days for t in times]
    work.add_events(events.filter(pa.array(needed, pa.bool_())).select(work.event_columns))
    for group in [tile_table(view, event_rows(events))] if tiles is None else tiles:
        work.join_tiles([group.select(work.tile_columns)])
    return work.results()


def row_of(results: JoinResult, view: FeatureView, i: int) -> tuple[dict[str, Any], dict[str, str]]:
    values, statuses = {}, {}
    for f in view.compiled.features:
        column = results.columns[f.name]
        value = column.take(np.array([i])).to_arrow(f.type.arrow)
        values[f.name] = event_rows(pa.table({"value": value}))[0]["value"]
        statuses[f.name] = STATUS_NAMES[results.statuses[f.name][i]]
    return values, statuses


def check(view: FeatureView, events: pa.Table, keys: pa.Table, as_of_ms: Sequence[int]) -> None:
    """Every row of the join equals the oracle."""
    got = join(view, events, keys, as_of_ms)
    rows = entered(view, event_rows(events))
    for i, (key, q) in enumerate(zip(keys.to_pylist(), as_of_ms, strict=True)):
        known = None not in key.values()
        own = Entered(row for row in rows if known and has_key(row, key))
        expected = answer(view, own, q)
        values, statuses = row_of(got, view, i)
        assert not differences(view, own, q, expected, values, statuses), (key, q)


def has_key(row: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    return all(row[name] == value for name, value in key.items())


def clicks(*rows: tuple[int, int, float | None]) -> pa.Table:
    """Events (user, time, x) in the order given."""
    columns = {
        "user": [r[0] for r in rows],
        "t": [r[1] for r in rows],
        "x": [r[2] for r in rows],
        "word": [f"w{i}" for i in range(len(rows))],
    }
    return pa.table(columns, schema=arrow_schema(dict(SOURCE.schema)))


def users(*keys: int | None) -> pa.Table:
    return pa.table({"user": pa.array(keys, pa.int64())})


@cases(120)
@given(st.integers(0, 2**32))
def test_random_definitions_and_events_equal_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng, offline_only=True)
    events = random_events(rng, view, rng.choice((0, 1, 5, 40)) or 1)
    keys, as_of_ms = generators.random_rows(rng, view, events, 15)
    check(view, events, keys, as_of_ms)


def test_an_event_at_exactly_the_time_is_out() -> None:
    #  tiles  [0-------------)[300s----------)
    #  q             q = 400 s: 399.999 is in, 400 is out
    view = view_of(Count(windows=["1h"]))
    events = clicks((1, 399_999, 1.0), (1, 400_000, 1.0), (1, 400_001, 1.0))
    got = join(view, events, users(1, 1), [400_000, 400_001])
    assert got.columns["count_1h"].values.tolist() == [1, 2]


def test_a_window_starts_at_the_hop_before_q_minus_its_length() -> None:
    q = 2 * HOUR_MS + 7 * MINUTE_MS
    first = HOUR_MS + 5 * MINUTE_MS  # floor(q - 1h, 5min)
    view = view_of(Count(windows=["1h"]))
    got = join(view, clicks((1, first, None), (1, first - 1, None)), users(1), [q])
    assert got.columns["count_1h"].values.tolist() == [1]


def test_events_at_or_after_the_time_change_nothing() -> None:
    rng = random.Random(5)
    for seed in range(20):
        rng = random.Random(seed)
        view = generators.random_view(rng, offline_only=True)
        events = random_events(rng, view, 30)
        keys, as_of_ms = generators.random_rows(rng, view, events, 10)
        later = random_events(rng, view, 20)
        offset = max(as_of_ms) - min(t for t in later.column("t").to_pylist())
        times = pa.array([t + offset for t in later.column("t").to_pylist()], pa.int64())
        later = later.set_column(later.schema.get_field_index("t"), "t", times)
        before = join(view, events, keys, as_of_ms)
        after = join(view, pa.concat_tables([later, events]), keys, as_of_ms)
        for feature in view.compiled.features:
            kind = feature.type.arrow
            assert (
                after.columns[feature.name].to_arrow(kind).to_pylist()
                == before.columns[feature.name].to_arrow(kind).to_pylist()
            )


def test_answers_come_in_the_order_of_the_rows_with_duplicates() -> None:
    view = view_of(Sum("x", windows=["1h"], scale=1))
    events = clicks((1, 0, 1.5), (2, 0, 2.5))
    keys = users(2, None, 1, 3, 2, 1)
    got = join(view, events, keys, [10, 10, 10, 10, 10, 5])
    column = got.columns["sum_x_1h"].to_arrow(pa.float64())
    assert column.to_pylist() == [2.5, None, 1.5, None, 2.5, 1.5]
    status = [STATUS_NAMES[s] for s in got.statuses["sum_x_1h"]]
    assert status == ["PRESENT", "MISSING", "PRESENT", "MISSING", "PRESENT", "PRESENT"]


def test_tiles_may_come_in_groups_of_entities() -> None:
    rng = random.Random(11)
    view = view_of(
        Count(windows=["1h", "1d"]),
        Last("word", windows=["1d"]),
        DecayedSum("x", half_life="1h", windows=["7d"]),
    )
    rows = [(rng.randrange(9), rng.randrange(3 * DAY_MS), rng.random()) for _ in range(300)]
    events = clicks(*rows)
    keys = users(*(rng.randrange(10) for _ in range(200)))
    as_of_ms = [rng.randrange(3 * DAY_MS) for _ in range(200)]
    tiles = tile_table(view, event_rows(events))
    parity = np.array(tiles.column("user").to_pylist()) % 3
    groups = [tiles.filter(pa.array(parity == g)) for g in range(3)]
    whole, parts = join(view, events, keys, as_of_ms), join(view, events, keys, as_of_ms, groups)
    for f in view.compiled.features:
        kind = f.type.arrow
        assert parts.columns[f.name].to_arrow(kind) == whole.columns[f.name].to_arrow(kind)


def test_an_idle_entity_expires_and_is_then_forgotten() -> None:
    view = view_of(Count(windows=["1d"]), ttl="2d")
    as_of_ms = [HOUR_MS, 30 * HOUR_MS, 2 * DAY_MS, 2 * DAY_MS + 1]
    got = join(view, clicks((1, 0, 1.0)), users(1, 1, 1, 1), as_of_ms)
    assert got.columns["count_1d"].to_arrow(pa.int64()).to_pylist() == [1, 0, 0, None]
    assert got.statuses["count_1d"].tolist()[:3] == [0, 0, 0]
    longer = view_of(Count(windows=["7d"]), ttl="2d")
    got = join(longer, clicks((1, 0, 1.0)), users(1, 1), [2 * DAY_MS + 1, 7 * DAY_MS + HOUR_MS])
    assert [STATUS_NAMES[s] for s in got.statuses["count_7d"]] == ["EXPIRED", "MISSING"]


def test_times_of_ten_thousand_years_and_the_finest_tile_do_not_overflow() -> None:
    view = view_of(Count(), Count(windows=["1d"], name="day"), tile="1ms")
    far = 253_000_000_000_000
    events = clicks(*((u, t, 1.0) for u in range(50) for t in (-62_000_000_000_000, 0, far)))
    keys = users(*range(50))
    check(view, events, keys, [far + 1] * 50)
