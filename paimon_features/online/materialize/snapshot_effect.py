"""The effect of a tile table snapshot on the online store: new rows, nothing, or a rebuild.

Also the files that the records of a bucket are computed from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from paimon_features.core.windows import DAY_MS, floor_ms
from paimon_features.definitions import CompiledView
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import Snapshot
from paimon_features.lake.reading.deltas import DataFile, Delta, live_files
from paimon_features.lake.specs import TILE_DAY
from paimon_features.online.materialize.materialize_progress import RebuildNeeded
from paimon_features.tiles.rollups import Rollups


def identity(snapshot: Snapshot) -> int:
    """Return a hash that distinguishes a snapshot from one that reuses its id after a rollback."""
    text = f"{snapshot.commit_user}\n{snapshot.commit_identifier}\n{snapshot.time_ms}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def added_files(
    view: CompiledView, delta: Delta, high_ms: Mapping[int, int]
) -> dict[int, list[DataFile]]:
    """Return the files that a snapshot added, by bucket, for the buckets of ``high_ms``.

    ``high_ms`` maps each bucket to its newest applied event time.

    Raises
    ------
    RebuildNeeded
        For a snapshot that did more than add rows: an overwrite other than the expiry of
        partitions older than every window, or an append that deletes files.
    """
    files = {b: files for b, files in delta.by_bucket().items() if b in high_ms}
    snapshot = delta.snapshot
    if snapshot.kind in ("COMPACT", "ANALYZE"):
        return {}
    if snapshot.kind == "APPEND":
        for file in (file for of_bucket in files.values() for file in of_bucket):
            if file.kind != "ADD" or file.level != 0:
                raise RebuildNeeded(
                    f"snapshot {snapshot.id} is an append with {file.kind} at level "
                    f"{file.level}, expected ADD at level 0"
                )
        return files
    if snapshot.kind == "OVERWRITE":
        for bucket, of_bucket in files.items():
            oldest_ms = oldest_needed(view, high_ms[bucket])
            for file in of_bucket:
                if file.kind == "ADD" or partition_end_ms(file) > oldest_ms:
                    raise RebuildNeeded(
                        f"snapshot {snapshot.id} overwrites day {file.partition[TILE_DAY]}, "
                        "which is within a window"
                    )
        return {}
    raise RebuildNeeded(f"snapshot {snapshot.id} has the unknown kind {snapshot.kind!r}")


def oldest_needed(view: CompiledView, high_ms: int) -> int:
    """Return the start (inclusive, ms) of the data that an allowed read may need."""
    return int(view.known_from(np.array([high_ms - view.margin_ms], np.int64))[0])


def partition_end_ms(file: DataFile) -> int:
    """Return the end (exclusive, ms) of the days of a file's partition."""
    return (int(file.partition[TILE_DAY]) + file.partition_days) * DAY_MS


def newest_partition_ms(files: Iterable[DataFile]) -> int:
    """Return the start (inclusive, ms) of the newest partition of files: an event is not older than
    it.

    Before all times without files.
    """
    return max((int(file.partition[TILE_DAY]) for file in files), default=-1) * DAY_MS


def needed_files(
    lake: Lake, view: CompiledView, table: str, snapshot_id: int, buckets: Sequence[int]
) -> dict[int, list[DataFile]]:
    """Return the files of each bucket at a snapshot (0: none yet) that an allowed read may need.

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
    """Return the files of a bucket whose days are within a window of an allowed read."""
    oldest_ms = oldest_needed(view, newest_partition_ms(files))
    return [file for file in files if partition_end_ms(file) > oldest_ms]


def rolled(view: CompiledView, rollups: Rollups | None, files: list[DataFile]) -> list[DataFile]:
    """Return the same data in fewer rows: rollups whose rows go into the lifetime cell entirely."""
    if rollups is None or not view.has_lifetime:
        return files
    newest_ms = newest_partition_ms(files)
    # some event is not older, so no level retains a cell that ends before this
    gone_ms = min(
        floor_ms(view.keep_from(level, newest_ms), step)
        for level, step in enumerate(view.levels_ms)
    )
    return rollups.cover(files, lambda first_day, end_day: end_day * DAY_MS <= gone_ms)
