"""Building one bucket of a new epoch from all raw rows of the tile table at one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from paimon_features.aggregates import EVENT_TIME_MAX
from paimon_features.aggregates.fold import NEVER_MS
from paimon_features.materialize.apply import BucketWriter
from paimon_features.materialize.fold import (
    TILE_START,
    Contributions,
    contributions,
    rows_of_part,
)
from paimon_features.materialize.plan import oldest_needed, partition_end_ms
from paimon_features.online.codec import RecordLayout
from paimon_features.tables.deltas import DataFile, read_file
from paimon_features.windows import DAY_MS

MAX_ROWS = 1_000_000
"""Rows of a bucket that are held in memory at a time; more are read by entity ranges."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What filling a bucket came to: its newest event time, rows folded, records written."""

    high_ms: int
    tiles: int
    records: int


def read_contributions(
    layout: RecordLayout, files: Sequence[tuple[int, DataFile]], max_rows: int
) -> Iterator[Contributions]:
    """The rows of (snapshot id, file) pairs by entity, in parts of about ``max_rows`` rows.

    An entity is in one part, whole.

    Raises
    ------
    SnapshotExpiredError
        If a file is gone.
    TableError
        If a row is a retraction.
    """
    columns = [*layout.view.keys, TILE_START, *(p.name for p in layout.view.partials)]
    parts = max(1, -(-sum(file.rows for _, file in files) // max_rows))
    for part in range(parts):
        # each file is cut down before the next is read, so that memory stays bounded
        tables = [
            (snapshot, rows_of_part(layout, read_file(file, columns), part, parts))
            for snapshot, file in files
        ]
        yield contributions(layout, tables)


def fill_bucket(
    writer: BucketWriter,
    layout: RecordLayout,
    files: Sequence[DataFile],
    snapshot: int,
    max_rows: int = MAX_ROWS,
    progress: Callable[[int, int], None] | None = None,
) -> Filled:
    """Write all records of a bucket from its live files at ``snapshot``.

    Partitions that no window can reach are not read. ``progress`` gets rows and records so far.
    """
    if not files:
        return Filled(NEVER_MS, 0, 0)
    newest_day_ms = max(partition_end_ms(file) for file in files) - DAY_MS
    # some event is not older than the newest day, so this is the least that may be needed
    oldest_ms = oldest_needed(layout.view, newest_day_ms)
    needed = [file for file in files if partition_end_ms(file) > oldest_ms]
    high_ms = _newest_event([f for f in files if partition_end_ms(f) > newest_day_ms])
    tiles = records = 0
    for new in read_contributions(layout, [(snapshot, file) for file in needed], max_rows):
        records += writer.fill(new, snapshot, high_ms)
        tiles += len(new.cells)
        if progress is not None:
            progress(tiles, records)
    return Filled(high_ms, tiles, records)


def _newest_event(files: Sequence[DataFile]) -> int:
    newest = NEVER_MS
    for file in files:
        found = pc.max(read_file(file, [EVENT_TIME_MAX.name]).column(0)).as_py()
        newest = newest if found is None else max(newest, found)
    return newest
