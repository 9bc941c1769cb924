"""Every aggregate through a real tile job: several commits, compaction, both read paths."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.expressions import evaluate
from paimon_features.core.expressions.items import encode_items
from paimon_features.core.types.schema import Decimal, Int64, Timestamp, arrow_schema
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions import aggregates as agg
from paimon_features.definitions.aggregates.registers import decode_sketches, word_of
from paimon_features.flink.environment import open_environment, register_lake
from paimon_features.lake import read_arrow
from paimon_features.testing.generators import EVENT_TIME, VALUE_COLUMNS, random_events
from paimon_features.testing.reference.merges import words_of
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local import submission as local_backfill
from tests.tile_jobs import append_events, wrong_tiles

pytestmark = pytest.mark.flink

TargetOf = Callable[[str, FeatureView], TileTarget]

SOURCE = EventSource(
    "everything",
    schema={
        "user": Int64,
        EVENT_TIME: Int64,
        **VALUE_COLUMNS,
        "moment": Timestamp,
        "wide": Decimal(38, 12),
    },
    event_time=EVENT_TIME,
)
EVERYTHING = FeatureView(
    "everything",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    tile="1d",
    derive={
        "amount": "small * x",
        "hour": f"hour({EVENT_TIME}, 'Europe/Madrid')",
        "month": "date_trunc('month', moment)",
        "weekend": f"is_weekend({EVENT_TIME}, 'Asia/Kathmandu')",
    },
    features=[
        agg.Skewness("small"),
        agg.Kurtosis("x", scale=2),
        agg.First("word", tie="day"),
        agg.Last("price", tie="word"),
        agg.Last("vec"),
        agg.First("pair", tie="price"),
        agg.FirstN("x", n=3),
        agg.LastN("word", tie="flag", n=3, where="n > 0"),
        agg.TopK("word", by="price", n=2),
        agg.BottomK("day", n=2),
        agg.CountBy("word", values=["a", "it's", ""]),
        agg.SumBy("amount", by="small", values=[0, -1], scale=2),
        agg.TopCategories("word", n=2),
        agg.TopCategories("small", n=5),
        agg.Any(condition="n > 2 OR flag", name="some"),
        agg.TimeSinceLast("vec"),
        agg.TimeSinceFirst(),
        agg.ApproxCountDistinct("word"),
        agg.ApproxCountDistinct("x", where="flag"),
        agg.Quantile("amount", q=[0.1, 0.5], edges=[-1.5, 0, 1e3]),
        agg.VectorSum("vec"),
        agg.VectorMean("pair"),
        agg.DecayedSum("small", half_life=["1h", "1d"]),
        *map(agg.Min, ("word", "day", "flag", "moment")),
        *map(agg.Max, ("word", "price", "wide", "moment")),
        agg.Max("price", scale=1, name="rounded"),
        agg.Sum("hour"),
        agg.Max("month"),
        agg.Count(where="weekend", name="weekends"),
    ],
)
VISITS = FeatureView(
    "visits",
    source=EventSource("visits", schema={"user": Int64, "page": Int64, "t": Int64}, event_time="t"),
    entity=Entity("user", keys={"user": Int64}),
    features=[agg.ApproxCountDistinct("page", windows=["1h"]), agg.LastN("page", windows=["1h"])],
)


def by_duckdb(target: TileTarget) -> None:
    """A first commit: cheaper than a second job, and tiles of both engines must merge."""
    local_backfill.backfill(target)


def by_flink(target: TileTarget) -> None:
    assert submit(target, bounded=True).state == "STOPPED"


def compact(target: TileTarget) -> None:
    env = open_environment("batch", state_dir=target.state_dir)
    env.get_config().set("table.dml-sync", "true")
    register_lake(env, target.lake)
    name = f"features.{target.tables[0]}"
    env.execute_sql(f"CALL sys.compact(`table` => '{name}', compact_strategy => 'full')").wait()


def test_tiles_of_every_aggregate_equal_the_oracle_before_and_after_compaction(
    target_of: TargetOf,
) -> None:
    target = target_of("everything", EVERYTHING)
    events = random_events(random.Random(4), EVERYTHING, 150)
    for part, run in ((events.slice(0, 40), by_duckdb), (events.slice(40), by_flink)):
        append_events(target.lake, EVERYTHING, part)
        run(target)
    rows = event_rows(events)
    assert wrong_tiles(target.lake, EVERYTHING, target.tables[0], rows) == []
    compact(target)
    assert wrong_tiles(target.lake, EVERYTHING, target.tables[0], rows) == []


@pytest.mark.long
def test_a_tile_of_thousands_of_values_is_equal_on_both_read_paths(target_of: TargetOf) -> None:
    # enough values for a bitmap instead of an array in the lake
    target = target_of("visits", VISITS)
    pages = np.arange(12_000) * 7919
    items = encode_items([Column(np.arange(12_000)), Column(pages)], [Int64, Int64]).tolist()
    for half in (slice(0, 6_000), slice(6_000, 12_000)):
        rows = {"user": np.ones(6_000, int), "page": pages[half], "t": np.arange(12_000)[half]}
        events = pa.table(rows, schema=arrow_schema(VISITS.source.schema))
        append_events(target.lake, VISITS, events)
        by_flink(target)
    compact(target)
    expression = VISITS.compiled.expressions["p_distinct_page"]
    sketches = evaluate(expression, {"page": Column(pages)}, len(pages)).values
    for native in (True, False):
        (row,) = read_arrow(target.lake, target.tables[0], native=native).to_pylist()
        codes, _ = decode_sketches([row["p_distinct_page"]])
        assert set(word_of(codes).tolist()) == set().union(*map(words_of, sketches.tolist()))
        assert sorted(row["p_last_n_page"].split(",")) == sorted(items)
