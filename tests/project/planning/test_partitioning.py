"""The partitions of tile tables: chosen from the events, announced, and never mixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureRef,
    FeatureView,
)
from paimon_features.definitions.aggregates import Count, DecayedSum, LastN, Sum
from paimon_features.lake import Lake, latest_snapshot, read_arrow, table_options
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.side_folder import generations
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.offline.store import OfflineStore
from paimon_features.project.planning.plan import apply_plan, make_plan
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local.submission import backfill

SOURCE = EventSource(
    "visits", schema={"user": Int64, "amount": Float64, "t": Int64}, event_time="t"
)
VIEW = FeatureView(
    "visits",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        Count(windows=["30d", None]),
        Sum("amount", windows=["1h", "30d"], scale=2),
        DecayedSum("amount", half_life="1d", windows=["30d"]),
        LastN("amount", n=3, windows=["90d"]),
    ],
)
LONG, NOW_MS = 300, 20_000 * DAY_MS


def events(days: int, count: int) -> pa.Table:
    times = [15_000 * DAY_MS + n * days * DAY_MS // count for n in range(count)]
    return pa.table(
        {"user": [n % 7 for n in range(count)], "amount": [n / 4 for n in range(count)], "t": times}
    )


def write(lake: Lake, rows: pa.Table) -> None:
    EventWriter.of(lake, SOURCE, lambda: NOW_MS).write(rows)


def target_of(lake: Lake, view: FeatureView = VIEW, generation: int = 1) -> TileTarget:
    folder = Path(lake.warehouse) / "state"
    return TileTarget("shop", lake, view.compiled, generation, folder, FlinkConfig(1, 1_000))


def details(lake: Lake, view: FeatureView = VIEW) -> str:
    plan = make_plan(lake, Definitions.of([view]))
    return "\n".join(next(c for c in plan.changes if c.kind == "feature_view").details)


def history(lake: Lake, view: FeatureView = VIEW, generation: int = 1) -> pa.Table:
    record = generations.get(lake, view.name, generation)
    store = OfflineStore(lake, lambda _: view.compiled, lambda _: record)
    rows = pa.table(
        {
            "user": [n % 8 for n in range(60)],
            "event_time_ms": [15_000 * DAY_MS + n * 6 * DAY_MS + n * HOUR_MS for n in range(60)],
        }
    )
    refs = [FeatureRef(view.name, f.name) for f in view.compiled.features]
    return store.get_historical_features(refs, rows, statuses=True)


def test_a_view_of_a_sparse_history_gets_long_partitions_and_the_plan_says_so(lake: Lake) -> None:
    apply_plan(lake, Definitions.of([SOURCE]), now_ms=0)
    write(lake, events(LONG, 600))
    assert table_options.partition_days(lake, SOURCE.table) == 8
    assert "gets a partition for 8 days: 600 events in 38 partitions of 8 days" in details(lake)
    apply_plan(lake, Definitions.of([VIEW]), now_ms=0)
    assert table_options.partition_days(lake, VIEW.compiled.table(1)) == 8


def test_the_empty_tables_of_a_new_project_get_their_partitions_when_they_are_filled(
    lake: Lake,
) -> None:
    apply_plan(lake, Definitions.of([replace(VIEW, source=SOURCE)]), now_ms=0)
    table_options.set_partition_days(lake, SOURCE.table, 1)
    write(lake, events(LONG, 600))
    table = VIEW.compiled.table(1)
    assert f"{table} gets a partition for 8 days: 600 events on 300 days" in details(lake)
    messages: list[str] = []
    backfill(target_of(lake), on_message=messages.append)
    assert any("gets a partition for 8 days" in message for message in messages)
    newest = latest_snapshot(lake, table)
    assert newest is not None
    files = live_files(lake, table, newest.id)
    assert len(files) <= 2 * (LONG // 8 + 1)
    assert {file.partition["tile_day"] % 8 for file in files} == {0}


def test_a_table_with_tiles_keeps_its_partitions_until_it_is_rebuilt(lake: Lake) -> None:
    apply_plan(lake, Definitions.of([VIEW]), now_ms=0)
    table_options.set_partition_days(lake, SOURCE.table, 1)
    write(lake, events(30, 300))
    backfill(target_of(lake))
    write(lake, events(LONG, 600))
    assert table_options.partition_days(lake, VIEW.compiled.table(1)) == 1
    advice = details(lake)
    assert "has a partition a day, and would read faster with a partition for 8 days" in advice
    assert "'paimon-features backfill visits --rebuild'" in advice
    plan = make_plan(lake, Definitions.of([VIEW]))
    assert plan.is_empty
    assert "partition_days=8, and 'paimon-features maintain' merges" in str(plan)
    backfill(target_of(lake), rebuild=True)
    assert table_options.partition_days(lake, VIEW.compiled.table(1)) == 8
    assert "would read faster" not in details(lake)


@pytest.mark.long
def test_any_partitions_give_the_same_tiles_and_features(lake: Lake) -> None:
    sparse = replace(VIEW, partition_days=1)
    apply_plan(lake, Definitions.of([sparse]), now_ms=0)
    write(lake, events(LONG, 200))
    write(lake, events(LONG - 100, 50))  # late ones
    backfill(target_of(lake, sparse))
    expected = history(lake, sparse)
    order = [("user", "ascending"), ("tile_start", "ascending")]
    # the lake keeps the items of a list in any order; the features put them into theirs
    partials = [p.name for p in sparse.compiled.partials if p.merge.paimon != "listagg"]
    columns = ["user", "tile_start", *partials]
    tiles = read_arrow(lake, sparse.compiled.table(1), columns).sort_by(order)
    for generation, days in enumerate((8, 64, 512, "none"), 2):
        view = replace(VIEW, partition_days=days)
        assert "needs a backfill" in details(lake, view)
        apply_plan(lake, Definitions.of([view]), now_ms=0)
        backfill(target_of(lake, view, generation))
        found = read_arrow(lake, view.compiled.table(generation), columns)
        assert found.sort_by(order).equals(tiles)
        assert history(lake, view, generation).equals(expected)


def test_events_get_longer_partitions_from_now_on_and_never_shorter_ones(lake: Lake) -> None:
    daily = replace(SOURCE, partition_days=1)
    apply_plan(lake, Definitions.of([replace(VIEW, source=daily)]), now_ms=0)
    write(lake, events(LONG, 100))
    backfill(target_of(lake))
    expected = history(lake)
    longer = replace(VIEW, source=replace(SOURCE, partition_days=64))
    plan = apply_plan(lake, Definitions.of([longer]), now_ms=0)
    change = next(c for c in plan.changes if c.kind == "source")
    assert "written from now on get a partition for 64 days" in change.details[-1]
    assert "'paimon-features maintain' merges the partitions that are there" in change.details[-1]
    assert table_options.partition_days(lake, SOURCE.table) == 64
    assert history(lake).equals(expected), "daily partitions are read as partitions of 64 days"
    write(lake, events(LONG, 100))
    backfill(target_of(lake), rebuild=True)
    assert history(lake).column("count")[-1].as_py() == 2 * expected.column("count")[-1].as_py()
    with pytest.raises(DefinitionError, match="can only become longer"):
        make_plan(lake, Definitions.of([replace(VIEW, source=replace(SOURCE, partition_days=8))]))


@pytest.mark.parametrize("days", [0, 7, "8"])
def test_other_numbers_of_days_are_rejected(days: int | str) -> None:
    with pytest.raises(DefinitionError, match="partition_days=.*expected 1, 8, 64, 512, 'none'"):
        replace(VIEW, partition_days=days)
    with pytest.raises(DefinitionError, match="source 'visits': partition_days="):
        replace(SOURCE, partition_days=days)
