"""A rebuild from rolled-up tiles results in the same records as one from tiles."""

from __future__ import annotations

from paimon_features.core.windows import DAY_MS
from paimon_features.lake.metadata.snapshots import latest_snapshot
from paimon_features.lake.reading.deltas import live_files
from paimon_features.offline.rollup import roll_up
from paimon_features.online.materialize.snapshot_effect import rolled, within_windows
from paimon_features.online.store import MemoryStore
from paimon_features.tiles.rollups import Rollups
from tests.clicks import START_MS, ClickStream, wrong_answers
from tests.tile_lake import TileLake


def test_old_days_are_read_from_rollups_and_records_are_exact(
    lake: TileLake, stream: ClickStream
) -> None:
    old = [
        {"user": user, "t": START_MS - day * DAY_MS - n * 600_000, "n": n, "word": None}
        for day in range(5, 200, 3)
        for user in range(5)
        for n in range(4)
    ]
    lake.commit(old)
    stream.events += old
    for _ in range(3):
        stream.commit()
    roll_up(lake.lake, lake.compiled, lake.record, START_MS + 10 * DAY_MS)
    newest = latest_snapshot(lake.lake, lake.record.table)
    assert newest is not None
    rollups = Rollups.of(lake.lake, lake.compiled, lake.record.table)
    files = within_windows(lake.compiled, live_files(lake.lake, lake.record.table, newest.id, [0]))
    fewer = rolled(lake.compiled, rollups, files)
    assert sum(f.rows for f in fewer) < sum(f.rows for f in files) / 3

    store = MemoryStore()
    worker = lake.materializer(store)
    done = worker.run_once()
    assert done.caught_up
    assert wrong_answers(lake.view, store, stream.events) == []
    late = {"user": 3, "t": START_MS - 11 * DAY_MS, "n": 7, "word": None}
    stream.events.append(late)
    lake.commit([late])
    assert worker.run_once().caught_up
    assert wrong_answers(lake.view, store, stream.events) == []
