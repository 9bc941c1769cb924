"""The offline store over a real lake: equal to the oracle, nothing leaks, requests are checked."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.core.types.schema import Float64, Int64, String, arrow_schema
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import Entity, EventSource, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, DecayedSum, Last, Sum
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import answer
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.testing.sizes import seeds
from tests import generators
from tests.offline.lake_of_views import LakeOfViews, partition_days

SOURCE = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "x": Float64, "word": String}, event_time="t"
)
USER = Entity("user", keys={"user": Int64})
SPEND = FeatureView(
    "spend",
    source=SOURCE,
    entity=USER,
    features=[Sum("x", windows=["1h", "7d"], scale=2), Count(windows=["7d"])],
    ttl="7d",
)
WORDS = FeatureView(
    "words",
    source=SOURCE,
    entity=Entity("word", keys={"word": String}),
    features=[Count(windows=["7d"]), Last("user")],
)


def clicks(*rows: tuple[int | None, int, float | None, str | None]) -> pa.Table:
    columns = dict(zip(("user", "t", "x", "word"), zip(*rows, strict=True), strict=True))
    return pa.table({k: list(v) for k, v in columns.items()}, schema=arrow_schema(SOURCE.schema))


@pytest.fixture
def lake(tmp_path: Path) -> LakeOfViews:
    return LakeOfViews(tmp_path, SPEND, WORDS)


@pytest.fixture
def filled(lake: LakeOfViews) -> LakeOfViews:
    lake.commit(clicks((1, 0, 1.25, "a"), (1, 60_000, None, "b"), (2, -5, 3.0, "a")))
    lake.commit(clicks((1, 2 * DAY_MS, 2.0, "a"), (1, 1, 0.5, None)))
    return lake


@pytest.mark.parametrize("seed", seeds(12))
def test_random_definitions_over_a_real_lake_equal_the_oracle(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng, offline_only=True)
    events = random_events(rng, view, 40)
    lake = LakeOfViews(tmp_path, view, partition_days=partition_days(seed))
    cuts = sorted(rng.sample(range(events.num_rows), 2))
    for part in (events[: cuts[0]], events[cuts[0] : cuts[1]], events[cuts[1] :]):
        if part.num_rows:
            lake.commit(part)
    keys, as_of_ms = generators.random_rows(rng, view, events, 40)
    rows = keys.append_column("event_time_ms", pa.array(as_of_ms, pa.int64()))
    refs = lake.refs()
    got = lake.store.get_historical_features(refs, rows, statuses=True)
    assert got.column_names[: rows.num_columns] == rows.column_names
    names = [f.name for f in view.compiled.features]
    values = event_rows(got.select(names))
    statuses = got.select([f"{name}__status" for name in names]).to_pylist()
    raw = event_rows(events)
    for i, key in enumerate(event_rows(keys)):
        own = [e for e in raw if all(e[k] == v and v is not None for k, v in key.items())]
        expected = answer(view, own, as_of_ms[i])
        reported = {name: statuses[i][f"{name}__status"] for name in names}
        assert not differences(view, own, as_of_ms[i], expected, values[i], reported), (
            key,
            as_of_ms[i],
        )


def test_two_views_with_other_keys_are_read_for_the_same_rows(filled: LakeOfViews) -> None:
    rows = {"user": [1, 2], "word": ["a", None], "event_time_ms": [60_001, 0]}
    got = filled.store.get_historical_features(filled.refs(), rows).to_pydict()
    assert got == {
        **rows,
        "sum_x_1h": [1.75, 3.0],
        "sum_x_7d": [1.75, 3.0],
        "spend__count_7d": [3, 1],
        "words__count_7d": [2, None],
        "last_user": [1, None],
    }


def test_pandas_polars_and_arrow_rows_give_the_same(filled: LakeOfViews) -> None:
    data = {"user": [1, 2, 9], "event_time_ms": [60_001, 0, 5]}
    refs = filled.refs("spend")
    expected = filled.store.get_historical_features(refs, pa.table(data))
    for rows in (data, pd.DataFrame(data), pl.DataFrame(data), pa.table(data).to_reader()):
        assert filled.store.get_historical_features(refs, rows) == expected


def test_times_may_be_timestamps_of_any_unit(filled: LakeOfViews) -> None:
    refs = filled.refs("spend")
    plain = pa.table({"user": [1, 2], "event_time_ms": [60_000, -3]})
    expected = filled.store.get_historical_features(refs, plain)
    for unit, per_ms in (("ms", 1), ("us", 1_000), ("ns", 1_000_000)):
        ticks = pa.array([60_000 * per_ms, -3 * per_ms], pa.int64())
        times = ticks.view(pa.timestamp(unit, "UTC"))
        got = filled.store.get_historical_features(
            refs, pa.table({"user": [1, 2], "event_time_ms": times})
        )
        assert got.drop_columns(["event_time_ms"]) == expected.drop_columns(["event_time_ms"])


def test_an_int32_and_a_dictionary_key_are_taken_for_what_they_are(filled: LakeOfViews) -> None:
    word = pa.array(["a", "b"]).dictionary_encode()
    rows = pa.table(
        {"user": pa.array([1, 2], pa.int32()), "word": word, "event_time_ms": [60_001, 60_001]}
    )
    got = filled.store.get_historical_features(filled.refs(), rows)
    assert got["spend__count_7d"].to_pylist() == [3, 1]
    assert got["words__count_7d"].to_pylist() == [2, 1]


def test_no_rows_give_no_rows_with_all_columns(filled: LakeOfViews) -> None:
    rows = pa.table({"user": pa.array([], pa.int64()), "event_time_ms": pa.array([], pa.int64())})
    got = filled.store.get_historical_features(filled.refs("spend"), rows)
    assert got.num_rows == 0
    assert got.column_names == ["user", "event_time_ms", "sum_x_1h", "sum_x_7d", "count_7d"]


def test_a_lake_without_events_answers_missing(lake: LakeOfViews) -> None:
    rows = {"user": [1], "event_time_ms": [0]}
    got = lake.store.get_historical_features(lake.refs("spend"), rows, statuses=True)
    assert got["count_7d"].to_pylist() == [None]
    assert got["count_7d__status"].to_pylist() == ["MISSING"]


def test_what_was_committed_after_as_of_is_not_seen(lake: LakeOfViews) -> None:
    #  commits   [events 0 ms, 60,000 ms]   as_of   [late: event of 1 ms]
    lake.commit(clicks((1, 0, 1.0, "a"), (1, 60_000, 1.0, "a")))
    time.sleep(0.02)
    as_of = time.time_ns() // 1_000_000
    time.sleep(0.02)
    rows = {"user": [1, 1], "event_time_ms": [60_001, 2 * HOUR_MS]}
    refs = lake.refs("spend")
    before = lake.store.get_historical_features(refs, rows)
    lake.commit(clicks((1, 1, 5.0, "late"), (1, 60_000, 7.0, "late")))
    assert lake.store.get_historical_features(refs, rows, as_of=as_of) == before
    now = lake.store.get_historical_features(refs, rows)
    assert now["sum_x_7d"].to_pylist() == [14.0, 14.0]


def test_a_time_before_the_first_commit_sees_nothing(filled: LakeOfViews) -> None:
    rows = {"user": [1], "event_time_ms": [60_001]}
    got = filled.store.get_historical_features(filled.refs("spend"), rows, as_of=1)
    assert got["count_7d"].to_pylist() == [None]


def test_snapshots_are_chosen_once(filled: LakeOfViews) -> None:
    rows = pa.table({"user": [1], "event_time_ms": [60_001]})
    pinned = filled.store.pin(filled.refs("spend"))
    before = pinned.read(rows)
    filled.commit(clicks((1, 2, 9.0, "later")))
    assert pinned.read(rows) == before
    assert filled.store.get_historical_features(filled.refs("spend"), rows) != before


def test_the_head_comes_from_raw_events_although_the_tile_holds_later_ones(
    lake: LakeOfViews,
) -> None:
    lake.commit(clicks(*((1, t, 1.0, "a") for t in range(0, 300_000, 1000))))
    rows = {"user": [1] * 3, "event_time_ms": [1, 150_000, 300_000]}
    got = lake.store.get_historical_features(lake.refs("spend"), rows)
    assert got["count_7d"].to_pylist() == [1, 150, 300]


def test_the_first_and_the_last_day_of_a_window_are_read(lake: LakeOfViews) -> None:
    #  days     [ -1 )[  0  )[  1 ) ... [  7  )[
    #  window       a [b------------------c)      a is out, b and c are in
    lake.commit(clicks((1, -1, 1.0, "a"), (1, 0, 2.0, "b"), (1, 7 * DAY_MS - 1, 4.0, "c")))
    rows = {"user": [1], "event_time_ms": [7 * DAY_MS]}
    got = lake.store.get_historical_features(lake.refs("spend"), rows)
    assert got["sum_x_7d"].to_pylist() == [6.0]


def test_many_entities_and_few_take_the_same_values(lake: LakeOfViews) -> None:
    rng = random.Random(2)
    events = clicks(
        *(
            (rng.randrange(3000), rng.randrange(20 * DAY_MS), rng.random(), "a")
            for _ in range(20_000)
        )
    )
    lake.commit(events)
    users = np.arange(3000)
    rows = pa.table({"user": users, "event_time_ms": np.full(3000, 15 * DAY_MS + 7)})
    refs = lake.refs("spend")
    many = lake.store.get_historical_features(refs, rows)
    few = lake.store.get_historical_features(refs, rows.slice(100, 50))
    assert few == many.slice(100, 50)


def test_progress_ends_at_all_rows_of_all_views(filled: LakeOfViews) -> None:
    seen: list[tuple[int, int]] = []
    rows = {"user": [1, 2], "word": ["a", "z"], "event_time_ms": [5, 5]}
    filled.store.get_historical_features(
        filled.refs(), rows, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (4, 4)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"event_time_ms": [1]}, "missing column 'user', a key of entity 'user'"),
        ({"user": [1]}, "missing column 'event_time_ms'"),
        ({"user": ["x"], "event_time_ms": [1]}, "the key 'user' is string"),
        ({"user": [1.5], "event_time_ms": [1]}, "the key 'user' is double"),
        ({"user": [1, 2], "event_time_ms": [1, None]}, "null in 1 of 2 rows, first in row 1"),
        ({"user": [1], "event_time_ms": ["noon"]}, "is string; expected int64"),
        ({"user": [1], "event_time_ms": [2**60]}, "within the years 1 to 9999"),
        ({"user": [1], "event_time_ms": np.array([2**64 - 2**60])}, "within the years 1 to 9999"),
        ({"user": [1], "event_time_ms": [1], "count_7d": [1]}, "also the name of a feature"),
        ([1, 2], "entity rows of type list"),
    ],
)
def test_rows_that_cannot_be_answered_are_refused(
    filled: LakeOfViews, rows: Any, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        filled.store.get_historical_features(filled.refs("spend"), rows)


def test_unknown_and_repeated_features_are_refused(filled: LakeOfViews) -> None:
    rows = {"user": [1], "event_time_ms": [1]}
    with pytest.raises(UnknownNameError, match="count_8d"):
        filled.store.get_historical_features([FeatureRef("spend", "count_8d")], rows)
    with pytest.raises(RequestError, match="twice"):
        filled.store.get_historical_features([FeatureRef("spend", "count_7d")] * 2, rows)
    with pytest.raises(RequestError, match="no feature"):
        filled.store.get_historical_features([], rows)


def test_decayed_sums_do_not_depend_on_who_else_is_requested(tmp_path: Path) -> None:
    view = FeatureView(
        "decayed",
        source=SOURCE,
        entity=USER,
        features=[DecayedSum("x", half_life="1d", windows=["30d"]), Sum("x", name="plain")],
    )
    lake = LakeOfViews(tmp_path, view)
    rng = random.Random(4)
    lake.commit(
        clicks(
            *(
                (rng.randrange(20), rng.randrange(9 * DAY_MS), rng.gauss(0, 1e6), "a")
                for _ in range(2000)
            )
        )
    )
    rows = pa.table({"user": list(range(20)), "event_time_ms": [8 * DAY_MS] * 20})
    together = lake.store.get_historical_features(lake.refs(), rows)
    for i in range(20):
        assert (
            lake.store.get_historical_features(lake.refs(), rows[i : i + 1]) == together[i : i + 1]
        )


def test_an_unknown_option_is_an_error_before_rows_are_read(filled: LakeOfViews) -> None:
    refs, nothing = [FeatureRef("spend", "count_7d")], Path("no-such-file.parquet")
    store: Any = filled.store
    for read in (store.get_historical_features, store.stream_historical_features):
        with pytest.raises(TypeError, match="unexpected keyword argument 'memory'"):
            read(refs, nothing, memory=1)


@pytest.mark.parametrize("column", ["count_7d", "count_7d__status"])
def test_a_column_of_the_rows_with_the_name_of_a_result_is_refused(
    lake: LakeOfViews, column: str
) -> None:
    rows = {"user": [1], "event_time_ms": [0], column: ["mine"]}
    with pytest.raises(RequestError, match=f"{column}.* also the name of a feature or its status"):
        lake.store.get_historical_features(lake.refs("spend"), rows, statuses=True)


def test_a_series_is_no_entity_rows(lake: LakeOfViews) -> None:
    with pytest.raises(RequestError, match="entity rows of type Series; expected"):
        lake.store.get_historical_features(lake.refs("spend"), pd.Series([1]))
