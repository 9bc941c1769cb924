"""Raw rows of data files as contributions, in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from paimon_features.materialize.fold import (
    TILE_START,
    TileDelta,
    contributions,
    rows_of_part,
)
from paimon_features.online.codec import RecordLayout
from paimon_features.tables.deltas import DataFile, read_file

MAX_ROWS = 1_000_000
"""Rows of a bucket that are held in memory at a time; more are read by entity ranges."""


def read_contributions(
    layout: RecordLayout,
    files: Sequence[tuple[int, DataFile]],
    max_rows: int = MAX_ROWS,
    alive: Callable[[], None] = lambda: None,
) -> Iterator[TileDelta]:
    """The rows of (snapshot id, file) pairs by entity, in parts of about ``max_rows`` rows.

    An entity is in one part, whole. ``alive`` is called before each file is read.

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
        tables = []
        for snapshot, file in files:
            alive()
            # cut down before the next one is read, so that memory stays bounded
            rows = rows_of_part(layout, read_file(file, columns), part, parts)
            tables.append((snapshot, rows))
        yield contributions(layout, tables)
