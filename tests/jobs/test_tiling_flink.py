"""The tile job on Flink: every way to the same tiles, and the tiles are the oracle's."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from jobs.flink.environment import open_environment, register_lake
from jobs.flink.tiling import explain
from jobs.logic.tiling import Scan, tile_statements
from jobs.submission import backfill, submit
from jobs.target import TileTarget
from paimon_features.definitions import FeatureView
from paimon_features.tables import read_arrow, snapshots
from paimon_features.tables.consumers import consumers
from paimon_features.testing.generators import random_events, random_view
from paimon_features.testing.tile_jobs import (
    append_events,
    counted_skips,
    expected_skips,
    wrong_tiles,
)
from paimon_features.testing.tiler import event_rows

pytestmark = pytest.mark.flink

Purchases = Callable[[int, int], pa.Table]
TargetOf = Callable[[str, FeatureView], TileTarget]


def append_in_chunks(target: TileTarget, view: FeatureView, events: pa.Table, chunks: int) -> None:
    size = -(-len(events) // chunks)
    for start in range(0, len(events), size):
        append_events(target.lake, view, events.slice(start, size))


def test_batch_stream_and_handover_at_any_snapshot_give_the_same_tiles(
    target_of: TargetOf, spend: FeatureView, purchases: Purchases
) -> None:
    events = purchases(1, 600)
    rows = event_rows(events)
    cut = random.Random().randrange(60, 600)
    print(f"handover behind {cut} events")  # shown when the test fails

    as_batch = target_of("batch", spend)
    append_in_chunks(as_batch, spend, events, 6)
    backfill(as_batch)

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
    append_in_chunks(handed_over, spend, events.slice(cut), 3)
    submit(handed_over, bounded=True)

    for target in (as_batch, as_stream, handed_over):
        assert wrong_tiles(target.lake, spend, target.tables[0], rows) == []
        assert counted_skips(target.lake, target.tables[1]) == expected_skips(spend, rows)


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_tiles_of_any_view_equal_the_oracle(target_of: TargetOf, seed: int) -> None:
    rng = random.Random(seed)
    view = random_view(rng)
    events = random_events(rng, view, 300)
    target = target_of("any", view)
    append_events(target.lake, view, events)
    backfill(target)
    assert wrong_tiles(target.lake, view, target.tables[0], event_rows(events)) == []


def test_the_two_statements_read_the_events_once(target: TileTarget) -> None:
    env = open_environment(state_dir=target.state_dir)
    register_lake(env, target.lake)
    plan = explain(env, tile_statements(target.view, 1, Scan(1, consumer="c"), "user"))
    optimized = plan[plan.index("== Optimized Execution Plan ==") :]
    assert optimized.count("TableSourceScan(") == 1
    assert optimized.count("Reused(reference_id=") == 2


def test_a_skipped_row_can_be_found_by_its_key_and_time(
    target: TileTarget, spend: FeatureView
) -> None:
    row = {"customer_id": 7, "quantity": 5000, "unit_price": 1.0, "country": "", "at_ms": -1}
    nobody = {**row, "customer_id": None, "quantity": 1}
    schema = read_arrow(target.lake, target.events).schema
    events = pa.Table.from_pylist([row, nobody, nobody], schema=pa.schema(list(schema)[:5]))
    append_events(target.lake, spend, events)
    backfill(target)
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


def test_a_backfill_is_one_commit_and_holds_the_events_behind_it(
    target: TileTarget, spend: FeatureView, purchases: Purchases
) -> None:
    append_in_chunks(target, spend, purchases(2, 100), 4)
    backfill(target)
    kinds = [s.kind for s in snapshots(target.lake, target.tables[0])]
    assert kinds.count("APPEND") == 1
    assert consumers(target.lake, target.events) == {target.consumer: 5}
    assert target.record().backfilled
