"""The tile job on Flink: every way to the same tiles, and the tiles are the oracle's.

``PAIMON_FEATURES_SEED`` repeats a failing run of the random ones; ``make chaos`` runs many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from paimon_features.definitions import Definitions, FeatureView
from paimon_features.definitions.aggregates import Merge
from paimon_features.flink.environment import await_job, open_environment, register_lake
from paimon_features.lake import Lake, read_arrow, snapshots, table_options
from paimon_features.lake.duckdb_engine import DuckDBEngine
from paimon_features.lake.metadata.consumers import consumers
from paimon_features.project.planning.plan import apply_plan
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.tiler import event_rows, tile_schema
from paimon_features.tiles.flink.statement_set import statement_set
from paimon_features.tiles.flink.submission import backfill, submit
from paimon_features.tiles.flink.tiling import EventsScan, tile_statements
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local import submission as local_backfill
from paimon_features.tiles.local.tiling import skipped_sql, tile_rows, tile_sql
from tests.flink.feed import Purchases
from tests.generators import random_partition_days, random_view
from tests.tile_jobs import (
    append_events,
    counted_skips,
    expected_skips,
    wrong_tiles,
)

SEED = int(os.environ.get("PAIMON_FEATURES_SEED", random.randrange(10**6)))
JOBS = int(os.environ.get("PAIMON_FEATURES_RANDOM_JOBS", "1"))
VIEWS = 8

pytestmark = pytest.mark.flink

TargetOf = Callable[[str, FeatureView], TileTarget]


def append_in_chunks(target: TileTarget, view: FeatureView, events: pa.Table, chunks: int) -> None:
    size = -(-len(events) // chunks)
    for start in range(0, len(events), size):
        append_events(target.lake, view, events.slice(start, size))


def test_batch_stream_and_handover_at_any_snapshot_result_in_equal_tiles(
    target_of: TargetOf, spend: FeatureView, purchases: Purchases
) -> None:
    events = purchases(SEED, 600)
    rows = event_rows(events)
    cut = random.Random(SEED).randrange(60, 600)
    print(f"PAIMON_FEATURES_SEED={SEED}: handover behind {cut} events")

    def assert_right(target: TileTarget, rows: list[dict[str, object]]) -> None:
        assert wrong_tiles(target.lake, spend, target.tables[0], rows) == []
        assert counted_skips(target.lake, target.tables[1]) == expected_skips(spend, rows)

    as_stream = target_of("stream", spend)
    append_in_chunks(as_stream, spend, events.slice(0, cut), 3)
    assert submit(as_stream, bounded=True).state == "STOPPED"
    append_in_chunks(as_stream, spend, events.slice(cut), 3)
    second = submit(as_stream, bounded=True)
    assert second.resumed is not None
    assert submit(as_stream, bounded=True).state == "UNCHANGED"

    handed_over = target_of("handover", spend)
    append_in_chunks(handed_over, spend, events.slice(0, cut), 3)
    backfill(handed_over)
    assert_right(handed_over, rows[:cut])
    append_in_chunks(handed_over, spend, events.slice(cut), 3)
    submit(handed_over, bounded=True)

    behind_local = target_of("local", spend)
    append_in_chunks(behind_local, spend, events.slice(0, cut), 3)
    local_backfill.backfill(behind_local)
    append_in_chunks(behind_local, spend, events.slice(cut), 3)
    assert submit(behind_local, bounded=True).state == "STOPPED"
    kinds = [s.kind for s in snapshots(behind_local.lake, behind_local.tables[0])]
    assert kinds[:2] == ["APPEND", "APPEND"]  # tiles of DuckDB, then those of Flink in addition

    for target in (as_stream, handed_over, behind_local):
        assert_right(target, rows)


@pytest.mark.long
@pytest.mark.parametrize("number", range(JOBS))
def test_tiles_of_any_view_and_any_events_equal_the_oracle(tmp_path: Path, number: int) -> None:
    # many cases in one job, because starting a job dominates the time
    print(f"PAIMON_FEATURES_SEED={SEED + number}")
    rng = random.Random(SEED + number)
    lake = Lake.open(tmp_path / "lake", "features")
    views = [
        replace(random_view(rng, f"case_{case}"), partition_days=random_partition_days(rng))
        for case in range(VIEWS)
    ]
    events = {view.name: random_events(rng, view, 200) for view in views}
    for view in views:
        apply_plan(lake, Definitions.of([view]), now_ms=0)
    env = open_environment("batch", parallelism=1, state_dir=tmp_path / "state")
    register_lake(env, lake)
    statements = []
    for view in views:
        snapshot = append_events(lake, view, events[view.name])
        partition_days = table_options.partition_days(lake, view.compiled.table(1))
        scan = EventsScan(snapshot)
        statements.append(tile_statements(view.compiled, 1, scan, "user", partition_days))
    await_job(statement_set(env, *statements).execute(), "tiling")

    for view in views:
        rows = event_rows(events[view.name])
        compiled = view.compiled
        assert wrong_tiles(lake, view, compiled.table(1), rows) == [], view
        assert counted_skips(lake, compiled.skipped_table(1)) == expected_skips(view, rows), view
        assert_duckdb_gives_the_same(lake, view, events[view.name])


def assert_duckdb_gives_the_same(lake: Lake, view: FeatureView, events: pa.Table) -> None:
    """Compare exactly, except sums of floats, whose error the oracle bounds for both."""
    compiled = view.compiled
    exact = [
        p.name
        for p in compiled.partials
        if not (p.type.is_float and p.merge in (Merge.SUM, Merge.DECAYED_SUM))
    ]
    keys = ["tile_day", *compiled.keys, "tile_start"]
    with DuckDBEngine(threads=1) as engine:
        engine.add("raw", events)
        raw = engine.table(tile_sql(compiled, "raw"), "tiles").combine_chunks()
        days = table_options.partition_days(lake, compiled.table(1))
        batches = [tile_rows(compiled, batch, days) for batch in raw.to_batches()]
        tiles = pa.Table.from_batches(batches, tile_schema(view))
        skipped = engine.table(skipped_sql(compiled, "raw"), "skipped rows")
    for twin, table, columns in (
        (tiles, compiled.table(1), [*keys, *exact]),
        (skipped, compiled.skipped_table(1), ["tile_day", "reason", "detail", "p_rows"]),
    ):
        order = [(name, "ascending") for name in columns[: len(keys)]]
        flink = read_arrow(lake, table, columns).sort_by(order)
        assert twin.select(columns).sort_by(order).to_pylist() == flink.to_pylist(), view


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_the_two_statements_share_one_scan_and_validation(
    target: TileTarget,
    spend: FeatureView,
    purchases: Purchases,
    mode: Literal["streaming", "batch"],
) -> None:
    append_events(target.lake, spend, purchases(1, 1))
    env = open_environment(mode, state_dir=target.state_dir)
    register_lake(env, target.lake)
    scan = EventsScan(1, consumer="c" if mode == "streaming" else None)
    plan = str(statement_set(env, tile_statements(target.view, 1, scan, "user")).explain())
    optimized = plan[plan.index("== Optimized Execution Plan ==") :]
    assert optimized.count("TableSourceScan(") == 1
    assert optimized.count("Reused(reference_id=") == 2
    assert optimized.count("AS __fate") == 1


def test_a_backfill_is_one_commit_with_a_consumer_and_reports_skipped_rows(
    target: TileTarget, spend: FeatureView
) -> None:
    row = {"customer_id": 7, "quantity": 5000, "unit_price": 1.0, "country": "", "at_ms": -1}
    nobody, fine = {**row, "customer_id": None, "quantity": 1}, {**row, "quantity": 1}
    schema = read_arrow(target.lake, target.events).schema
    events = pa.Table.from_pylist([row, fine, nobody, nobody], schema=pa.schema(list(schema)[:5]))
    append_in_chunks(target, spend, events, 4)
    backfill(target)
    kinds = [s.kind for s in snapshots(target.lake, target.tables[0])]
    assert kinds.count("APPEND") == 1
    positions = {target.consumer: 5, "read-spend-g1": 4}  # the second keeps what the tiles contain
    assert consumers(target.lake, target.events) == positions
    assert target.record().backfilled
    found = read_arrow(target.lake, target.tables[1]).sort_by("p_rows").to_pylist()
    assert found == [
        {
            "tile_day": -1,
            "reason": "out_of_bounds",
            "detail": "|quantity| > 1000 | customer_id=7 at_ms=-1",
            "p_rows": 1,
        },
        {"tile_day": -1, "reason": "null_key", "detail": "customer_id", "p_rows": 2},
    ]
