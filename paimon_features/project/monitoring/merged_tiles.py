"""Aggregates of all entities of a view over a time range: its tiles folded into one row.

Complete tiles of the range are read from the tile table; the parts cut off at its ends are
computed from raw events by the same expressions. Any range is therefore exact, even one that
starts within a tile. Rows are folded while they are read, so memory does not limit the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.expressions import Expression
from paimon_features.core.process.callbacks import OnProgress, ignore_progress
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, Partial
from paimon_features.definitions.aggregates.fold import fold
from paimon_features.definitions.event_partials import concat, enters, partials_of
from paimon_features.lake import Lake
from paimon_features.lake.reading.deltas import DataFile, live_files
from paimon_features.lake.specs import EVENT_DAY, TILE_DAY, TILE_START
from paimon_features.offline.reading.pinning import Pin
from paimon_features.offline.reading.view_scan import pieces
from paimon_features.project.monitoring.time_ranges import TimeRange

CHUNK_ROWS = 1_000_000


def merged(
    lake: Lake,
    view: CompiledView,
    partials: Sequence[Partial],
    within: TimeRange,
    tiles: Pin,
    events: Pin,
    progress: OnProgress = ignore_progress,
) -> dict[str, Column]:
    """Return the partials of all events of a range, one row; null if no event has a value.

    Raises
    ------
    SnapshotExpiredError
        If a pinned snapshot, or a file of it, has expired.
    """
    whole, parts = within.split(view.tile_ms)
    tile_files = [] if whole is None else list(_within(lake, tiles, TILE_DAY, [whole]))
    event_files = list(_within(lake, events, EVENT_DAY, parts)) if parts else []
    total = sum(file.rows for file in (*tile_files, *event_files))
    needed = {p.name: p for p in (*partials, EVENT_TIME_MAX)}.values()
    folded = _FoldedTiles(view, tuple(needed))
    done = 0
    if whole is not None:
        for rows in pieces(tile_files, [TILE_START, *(p.name for p in needed)], CHUNK_ROWS):
            done += rows.num_rows
            starts = Column.from_arrow(rows.column(TILE_START)).values
            inside = np.flatnonzero((starts >= whole.low_ms) & (starts < whole.high_ms))
            columns = {p.name: Column.from_arrow(rows.column(p.name)) for p in needed}
            folded.add({name: column.take(inside) for name, column in columns.items()})
            progress(done, total)
    names = event_columns(view, [view.expressions[p.name] for p in needed])
    for events_table in pieces(event_files, names, CHUNK_ROWS):
        done += events_table.num_rows
        times, columns = entering(view, events_table, parts)
        folded.add(partials_of(view, folded.partials, columns, times))
        progress(done, total)
    return folded.row()


def event_columns(view: CompiledView, expressions: Iterable[Expression]) -> list[str]:
    """Return the source columns of these expressions, and of the conditions for entering."""
    requested = [*expressions, *(rule.condition for rule in view.skip_rules)]
    requested += [] if view.where is None else [view.where]
    names = {view.source.event_time}.union(*(e.columns for e in requested))
    return [name for name in view.source.schema if name in names]


def entering(
    view: CompiledView, events: pa.Table, within: Sequence[TimeRange]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], dict[str, Column]]:
    """Return times and columns of the events in these ranges that enter the view's tiles."""
    columns = {name: Column.from_arrow(events.column(name)) for name in events.column_names}
    time = columns[view.source.event_time]
    inside = np.zeros(events.num_rows, np.bool_)
    for part in within:
        inside |= (time.values >= part.low_ms) & (time.values < part.high_ms)
    inside &= time.mask & enters(view, columns, events.num_rows)
    rows = np.flatnonzero(inside)
    if len(rows) < events.num_rows:
        columns = {name: column.take(rows) for name, column in columns.items()}
    return columns[view.source.event_time].values.astype(np.int64, copy=False), columns


def events_within(
    lake: Lake, events: Pin, within: TimeRange, columns: Sequence[str]
) -> tuple[int, Iterator[pa.Table]]:
    """Return the rows of the files that can contain a range: their number, and chunks of them."""
    files = list(_within(lake, events, EVENT_DAY, [within]))
    return sum(file.rows for file in files), pieces(files, columns, CHUNK_ROWS)


def _within(lake: Lake, pin: Pin, day: str, within: Sequence[TimeRange]) -> Iterator[DataFile]:
    """Yield the files of the days of these ranges; all files of a table without days."""
    if pin.snapshot_id is None:
        return
    days = [(part.low_ms // DAY_MS, (part.high_ms - 1) // DAY_MS) for part in within]
    for file in live_files(lake, pin.table, pin.snapshot_id):
        if any(file.overlaps(day, low, high) for low, high in days):
            yield file


class _FoldedTiles:
    """Folds rows of partials into one, incrementally."""

    def __init__(self, view: CompiledView, partials: Sequence[Partial]) -> None:
        self.view, self.partials = view, partials
        self._kept: list[dict[str, Column]] = []

    def add(self, rows: dict[str, Column]) -> None:
        count = len(rows[EVENT_TIME_MAX.name])
        if count:
            self._kept.append(self._fold(rows, count))
        if len(self._kept) > 1000:
            self._kept = [self.row()]

    def row(self) -> dict[str, Column]:
        rows = {p.name: concat(p, [kept[p.name] for kept in self._kept]) for p in self.partials}
        return self._fold(rows, len(self._kept))

    def _fold(self, rows: dict[str, Column], count: int) -> dict[str, Column]:
        return fold(self.partials, rows, np.array([0, count]), self.view.tile_ms)
