"""The data files of a tile table that the records of a bucket are computed from."""

from __future__ import annotations

from collections.abc import Sequence

from paimon_features.core.windows import DAY_MS, floor_ms
from paimon_features.definitions import CompiledView
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.deltas import DataFile, live_files
from paimon_features.online.materialize.snapshot_effect import (
    newest_partition_ms,
    oldest_needed,
    partition_end_ms,
)
from paimon_features.tiles.rollups import Rollups


def needed_files(
    lake: Lake, view: CompiledView, table: str, snapshot_id: int, buckets: Sequence[int]
) -> dict[int, list[DataFile]]:
    """The files of each bucket at a snapshot (0: none yet) that an allowed read may need.

    Raises
    ------
    SnapshotExpiredError
        If the snapshot or one of its manifests has expired.
    """
    files: dict[int, list[DataFile]] = {}
    if snapshot_id:
        for file in live_files(lake, table, snapshot_id, buckets):
            files.setdefault(file.bucket, []).append(file)
    rollups = Rollups.of(lake, view, table)
    return {
        bucket: rolled(view, rollups, within_windows(view, files.get(bucket, [])))
        for bucket in buckets
    }


def within_windows(view: CompiledView, files: Sequence[DataFile]) -> list[DataFile]:
    """The files of a bucket whose days are within a window of an allowed read."""
    oldest_ms = oldest_needed(view, newest_partition_ms(files))
    return [file for file in files if partition_end_ms(file) > oldest_ms]


def rolled(view: CompiledView, rollups: Rollups | None, files: list[DataFile]) -> list[DataFile]:
    """The same data in fewer rows: rollups whose rows go into the lifetime cell entirely."""
    if rollups is None or not view.has_lifetime:
        return files
    newest_ms = newest_partition_ms(files)
    # some event is not older, so no level retains a cell that ends before this
    gone_ms = min(
        floor_ms(view.keep_from(level, newest_ms), step)
        for level, step in enumerate(view.levels_ms)
    )
    return rollups.cover(files, lambda first_day, end_day: end_day * DAY_MS <= gone_ms)
