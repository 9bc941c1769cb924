"""Read rows of data files as tile deltas, in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from paimon_features.lake.reading.deltas import DataFile, read_file
from paimon_features.online.materialize.record_fold import (
    TILE_START,
    TileDelta,
    rows_of_part,
    tile_delta,
)
from paimon_features.online.store.codec import RecordLayout

MAX_ROWS = 1_000_000
"""The maximum number of rows of a bucket in memory; more are read in parts by entity hash."""


def read_tile_deltas(
    layout: RecordLayout,
    files: Sequence[tuple[int, DataFile]],
    max_rows: int = MAX_ROWS,
    alive: Callable[[], None] = lambda: None,
) -> Iterator[TileDelta]:
    """Yield the rows of (snapshot id, file) pairs by entity, in parts of about ``max_rows`` rows.

    All rows of an entity are in one part. ``alive`` is called before each file is read.

    Raises
    ------
    SnapshotExpiredError
        If a file no longer exists.
    TableError
        If a row is a retraction.
    """
    columns = [*layout.view.keys, TILE_START, *(p.name for p in layout.view.partials)]
    parts = max(1, -(-sum(file.rows for _, file in files) // max_rows))
    for part in range(parts):
        tables = []
        for snapshot, file in files:
            alive()
            # filtered before the next file is read, so that memory stays bounded
            rows = rows_of_part(layout, read_file(file, columns), part, parts)
            tables.append((snapshot, rows))
        yield tile_delta(layout, tables)
