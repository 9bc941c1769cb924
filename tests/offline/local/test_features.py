"""Features computed from raw events equal the oracle, and those of tiles by the local engine."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import RequestError, SkippedEventsWarning, UnknownNameError
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import Entity, EventSource, FeatureView, load_definitions
from paimon_features.definitions.aggregates import Count, DecayedMean, DecayedSum, Last, Sum
from paimon_features.lake.duckdb_engine import DuckDBEngine
from paimon_features.offline.joins.point_in_time import PointInTimeJoin
from paimon_features.offline.local.features import features
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import answer
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.testing.sizes import cases
from paimon_features.tiles.local.tiling import tile_rows, tile_sql
from tests import generators

RETAIL = Path(__file__).parents[3] / "examples" / "retail"


def view_of(*aggregates: Any, **options: Any) -> FeatureView:
    source = EventSource("s", schema={"user": Int64, "t": Int64, "x": Float64}, event_time="t")
    entity = Entity("user", keys={"user": Int64})
    return FeatureView("v", source=source, entity=entity, features=aggregates, **options)


def wrong(view: FeatureView, events: pa.Table, found: pa.Table) -> list[str]:
    """Where a result with statuses is not the oracle's."""
    rows, keys = event_rows(events), list(view.entity.keys)
    names = [f.name for f in view.compiled.features]
    out = []
    requested = found.select(keys).to_pylist()
    values = event_rows(found.select(names))
    for i, q in enumerate(found.column("event_time_ms").to_pylist()):
        known = None not in requested[i].values()
        own = [r for r in rows if known and all(r[k] == requested[i][k] for k in keys)]
        reported = {name: found.column(f"{name}__status")[i].as_py() for name in names}
        out += differences(view, own, q, answer(view, own, q), values[i], reported)
    return out


@pytest.mark.filterwarnings("ignore::paimon_features.core.errors.SkippedEventsWarning")
@cases(30)
@given(st.integers(0, 2**32))
def test_random_definitions_and_events_equal_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng)
    events = random_events(rng, view, rng.choice((1, 5, 40)))
    keys, as_of_ms = generators.random_rows(rng, view, events, 15)
    rows = keys.append_column("event_time_ms", pa.array(as_of_ms, pa.int64()))
    found = features(view, events, rows, statuses=True)
    assert wrong(view, events, found) == []


@pytest.mark.long
def test_it_equals_the_point_in_time_join_on_the_retail_log() -> None:
    view = load_definitions(RETAIL / "features.py").view("customer_spend")
    compiled = view.compiled
    log = pq.read_table(RETAIL / "data" / "online_retail.parquet")
    events = log.select([name for name in log.column_names if name in view.source.schema])
    rng = np.random.default_rng(0)
    known = events.column("customer_id").drop_null().to_numpy()
    times = events.column("invoice_time_ms").to_numpy()
    as_of_ms = rng.choice(times, 1500) + rng.choice((0, 1, -1, HOUR_MS, DAY_MS), 1500)
    keys = pa.table({"customer_id": rng.choice(known, 1500)})
    rows = keys.append_column("event_time_ms", pa.array(as_of_ms))
    with pytest.warns(SkippedEventsWarning, match="customer_id is null .*belongs to no entity"):
        found = features(view, events, rows, statuses=True)

    join = PointInTimeJoin(compiled, compiled.features, keys, as_of_ms)
    join.add_events(events.select(join.event_columns))
    with DuckDBEngine() as engine:
        engine.add("log", events)
        tiles = engine.table(tile_sql(compiled, "log"), "tiles").combine_chunks()
    done = pa.Table.from_batches([tile_rows(compiled, batch) for batch in tiles.to_batches()])
    join.join_tiles([done.select(join.tile_columns)])
    results = join.results()
    for feature in compiled.features:
        twin = found.column(feature.name)
        own = results.columns[feature.name].to_arrow(feature.type.arrow)
        reported = [STATUS_NAMES[i] for i in results.statuses[feature.name]]
        assert found.column(f"{feature.name}__status").to_pylist() == reported
        if feature.name.startswith("decayed"):
            assert twin.null_count == own.null_count
            np.testing.assert_allclose(
                twin.drop_null().to_numpy(), own.drop_null().to_numpy(), rtol=1e-12
            )
        else:
            assert twin.to_pylist() == own.to_pylist(), feature.name
    # and the oracle, for some of them
    some = found.take(pa.array(rng.choice(len(found), 12)))
    own = events.filter(pa.compute.is_in(events.column("customer_id"), some.column("customer_id")))
    assert wrong(view, own, some) == []


def test_an_event_at_exactly_the_time_is_out_and_one_at_the_rounded_start_is_in() -> None:
    view = view_of(Count(windows=["1h"]))
    q = 2 * HOUR_MS + 7 * 60_000
    first = HOUR_MS + 5 * 60_000  # floor(q - 1h, 5min)
    events = {"user": [1] * 4, "t": [first - 1, first, q - 1, q], "x": [None] * 4}
    found = features(view, pa.table(events), {"user": [1], "event_time_ms": [q]})
    assert found.column("count_1h").to_pylist() == [2]


def test_a_mean_of_values_that_have_long_faded_is_still_their_mean() -> None:
    view = view_of(DecayedMean("x", half_life="1h"), DecayedSum("x", half_life="1h"))
    events = pa.table({"user": [1, 1], "t": [0, 0], "x": [1.0, 3.0]})
    found = features(view, events, {"user": [1], "event_time_ms": [400 * DAY_MS]})
    assert found.column("decayed_mean_x_h1h").to_pylist() == [2.0]
    assert found.column("decayed_sum_x_h1h").to_pylist() == [0.0]


def test_who_is_known_does_not_depend_on_the_features_that_are_requested() -> None:
    view = view_of(Count(windows=["1h", "30d"]))
    events = pa.table({"user": [1], "t": [0], "x": [1.0]})
    rows = {"user": [1, 2], "event_time_ms": [DAY_MS, DAY_MS]}
    found = features(view, events, rows, names=["count_1h"], statuses=True)
    assert found.column("count_1h").to_pylist() == [0, None]
    assert found.column("count_1h__status").to_pylist() == ["PRESENT", "MISSING"]


def test_events_come_as_a_frame_or_a_file_and_rows_keep_their_order(tmp_path: Path) -> None:
    view = view_of(Count(windows=["1h"]), Sum("x", windows=["1h"]))
    events = pa.table({"more": [0, 0], "x": [1, 2], "t": [0, 1], "user": [5, 6]})
    pq.write_table(events, tmp_path / "events.parquet")
    rows = pa.table({"event_time_ms": [9, 9, 9], "user": [6, 5, 6], "label": ["a", "b", "c"]})
    for given_events in (events, events.to_pandas(), tmp_path / "events.parquet", str(tmp_path)):
        found = features(view, given_events, rows)
        assert found.column_names == ["event_time_ms", "user", "label", "count_1h", "sum_x_1h"]
        assert found.column("sum_x_1h").to_pylist() == [2.0, 1.0, 2.0]
    assert features(view, events.slice(0, 0), rows).column("count_1h").null_count == 3
    assert features(view, events, rows.slice(0, 0)).num_rows == 0


def test_what_cannot_be_answered_is_refused_by_name() -> None:
    view = view_of(Count(windows=["1h"]), Last("x"))
    events = {"user": [1], "t": [0], "x": [1.0]}
    rows = {"user": [1], "event_time_ms": [1]}
    with pytest.raises(UnknownNameError, match="unknown feature 'count_2h' of view 'v'"):
        features(view, events, rows, names=["count_2h"])
    with pytest.raises(RequestError, match="each once"):
        features(view, events, rows, names=["count_1h", "count_1h"])
    with pytest.raises(RequestError, match="missing column 't'"):
        features(view, {"user": [1], "x": [1.0]}, rows)
    with pytest.raises(RequestError, match="'x' is string"):
        features(view, {**events, "x": ["one"]}, rows)
    with pytest.raises(RequestError, match="also the name of a feature"):
        features(view, events, {**rows, "last_x": [0]})
