"""Rolling tiles up: updates the rollups of a tile table to its newest snapshot.

Each unit is folded from the rollups of the level below, where those are there, else from tiles;
so a day that changed costs reading that day, and a row per entity of its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import SnapshotExpiredError
from paimon_features.core.process.callbacks import OnProgress, ignore_progress
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates.fold import fold, newest_tile_end
from paimon_features.lake import Lake, latest_snapshot
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.reading.deltas import DataFile, live_files
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import TILE_START
from paimon_features.offline.joins.entity_codes import EntityCodes
from paimon_features.offline.reading.view_scan import pieces
from paimon_features.tiles.rollups import Rollups, Unit

OPEN_MS = HOUR_MS
"""A day is rolled up so long after its end: before, most of its events may still be coming."""
HELD_ROWS = 2_000_000
"""Rows that are held before they are folded to one per entity."""
_BATCH_ROWS = 500_000
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class RollupSummary:
    """Result of a refresh: rollups up to date, created, not worth storing, deleted.

    ``rows_read`` were folded to ``rows_written``.
    """

    fresh: int = 0
    created: int = 0
    not_worth: int = 0
    deleted: int = 0
    rows_read: int = 0
    rows_written: int = 0

    def __str__(self) -> str:
        return (
            f"{self.fresh:,} rollups up to date, {self.created:,} created ({self.rows_read:,} rows "
            f"to {self.rows_written:,}), {self.not_worth:,} not worth storing, "
            f"{self.deleted:,} deleted"
        )


def roll_up(
    lake: Lake,
    view: CompiledView,
    record: GenerationRecord,
    now_ms: int,
    progress: OnProgress = ignore_progress,
) -> RollupSummary:
    """Create missing rollups of days that ended an hour before ``now_ms``.

    It may run alongside the tile job, because it does not write to the tile table. If interrupted,
    completed rollups remain. A rollup that would not halve the rows is not kept.

    Raises
    ------
    OwnershipError
        If another process is rolling up this table.
    SnapshotExpiredError
        If the table's files expired before they could be read, five times.
    """
    rollups = Rollups(lake, view, record.table)
    with acquire(lake, rollups.owner, purpose="roll its tiles up"):
        work = _RollupRun(lake, view, rollups, record.table)
        for attempt in range(_ATTEMPTS):
            try:
                return work.run(now_ms, progress)
            except SnapshotExpiredError:  # a compaction went by: there is a newer snapshot
                if attempt == _ATTEMPTS - 1:
                    raise
    raise AssertionError("not reached")


class _RollupRun:
    def __init__(self, lake: Lake, view: CompiledView, rollups: Rollups, table: str) -> None:
        self.lake, self.view, self.rollups, self.table = lake, view, rollups, table
        self._columns = [*view.keys, TILE_START, *(p.name for p in view.partials)]
        self._created = self._not_worth = self._read = self._written = 0

    def run(self, now_ms: int, progress: OnProgress) -> RollupSummary:
        newest = latest_snapshot(self.lake, self.table)
        if newest is None:
            return RollupSummary()
        schema = self.lake.schema(self.table)
        self._schema = pa.schema([schema.field(name) for name in self._columns])
        units = self.rollups.units(live_files(self.lake, self.table, newest.id))
        closed_day = (now_ms - OPEN_MS) // DAY_MS
        fresh = 0
        for done, unit in enumerate(units):
            progress(done, len(units))
            if unit.end_day > closed_day:
                continue
            if self.rollups.done(unit):
                fresh += 1
            else:
                self._make(unit)
        progress(len(units), len(units))
        return RollupSummary(
            fresh=fresh,
            created=self._created,
            not_worth=self._not_worth,
            deleted=self.rollups.sweep(units, now_ms),
            rows_read=self._read,
            rows_written=self._written,
        )

    def _make(self, unit: Unit) -> None:
        parts = self.rollups.cover(unit.files, lambda first, end: True)
        before = sum(file.rows for file in parts)
        rows = self._folded(parts)
        self._read += before
        if 2 * len(rows) > before:
            self.rollups.put(unit, None)
            self._not_worth += 1
        else:
            self.rollups.put(unit, rows)
            self._created += 1
            self._written += len(rows)

    def _folded(self, files: Sequence[DataFile]) -> pa.Table:
        """Return one row per entity.

        What is held is a row per entity, and rows yet to be folded.
        """
        held = [self._schema.empty_table()]
        count, limit = 0, HELD_ROWS
        for table in pieces(files, self._columns, _BATCH_ROWS):
            held.append(table.cast(self._schema))
            count += len(table)
            if count >= limit:
                held = [self._fold(pa.concat_tables(held))]
                count = len(held[0])
                limit = max(HELD_ROWS, 2 * count)
        return self._fold(pa.concat_tables(held))

    def _fold(self, rows: pa.Table) -> pa.Table:
        view = self.view
        codes = EntityCodes(rows, view.keys).codes
        order = np.argsort(codes, kind="stable")
        first = np.flatnonzero(np.diff(codes[order], prepend=-1))
        offsets = np.append(first, len(codes)).astype(np.int64)
        columns = {
            p.name: Column.from_arrow(rows.column(p.name)).take(order) for p in view.partials
        }
        folded = fold(view.partials, columns, offsets, view.tile_ms)
        keys = rows.select(list(view.keys)).take(pa.array(order[first]))
        newest = newest_tile_end(folded, view.tile_ms) - view.tile_ms
        arrays = {name: keys.column(name) for name in view.keys}
        arrays[TILE_START] = pa.array(newest, pa.int64())
        for name, column in folded.items():
            arrays[name] = column.to_arrow(self._schema.field(name).type)
        return pa.table(arrays, schema=self._schema)
