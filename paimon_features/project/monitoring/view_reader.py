"""Reads one view at pinned snapshots: column statistics from tiles, or rows of its events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from paimon_features.core.errors import UnknownNameError
from paimon_features.core.expressions import Expression, evaluate, parse
from paimon_features.core.process.callbacks import OnProgress, ignore_progress
from paimon_features.definitions import FeatureView
from paimon_features.lake import Lake
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.offline.reading.pinning import AsOf, Pinner
from paimon_features.project.monitoring.merged_tiles import (
    entering,
    event_columns,
    events_within,
    merged,
)
from paimon_features.project.monitoring.tile_statistics import TileColumn
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.transformers.column_statistics import ColumnStatistics


class ViewReader:
    """Reads the events of a view that enter its tiles.

    Columns are those of its source and its derived columns. Tiles are read at a pinned snapshot, by
    default the newest, and the events are those that the tiles contain.
    """

    def __init__(
        self, lake: Lake, view: FeatureView, record: GenerationRecord, as_of: AsOf = None
    ) -> None:
        self.lake, self.definition, self.view = lake, view, view.compiled
        pinner = Pinner(lake, as_of)
        _, self.tiles, self.events = pinner.feature_view(self.view, lambda _: record)

    def tile_columns(self, columns: Sequence[str]) -> list[TileColumn]:
        """Return the aggregates in the tiles for these columns.

        Raises
        ------
        UnknownNameError
            For a column that is neither in the source nor derived by the view.
        """
        self._expressions(columns)
        return [TileColumn.of(self.view, column) for column in columns]

    def statistics(
        self, columns: Sequence[str], within: TimeRange, progress: OnProgress = ignore_progress
    ) -> list[ColumnStatistics]:
        """Return statistics of columns over a range, from tiles (events where it cuts a tile)."""
        kept = self.tile_columns(columns)
        partials = {p.name: p for column in kept for p in column.partials}
        merged_partials = merged(
            self.lake,
            self.view,
            list(partials.values()),
            within,
            self.tiles,
            self.events,
            progress,
        )
        self._check_pins()
        return [column.statistics(merged_partials) for column in kept]

    def rows(
        self, columns: Sequence[str], within: TimeRange, progress: OnProgress = ignore_progress
    ) -> Iterator[pa.Table]:
        """Yield the columns of the events of a range in chunks, in the order of their files."""
        expressions = self._expressions(columns)
        names = event_columns(self.view, expressions.values())
        total, tables = events_within(self.lake, self.events, within, names)
        done = 0
        for table in tables:
            done += table.num_rows
            times, entered = entering(self.view, table, [within])
            arrays = {
                name: evaluate(expression, entered, len(times)).to_arrow(expression.type.arrow)
                for name, expression in expressions.items()
            }
            progress(done, total)
            if len(times):
                yield pa.table(arrays)
        self._check_pins()

    def _check_pins(self) -> None:
        """Raise SnapshotExpiredError if a table was created again while it was read."""
        for pin in (self.tiles, self.events):
            pin.check(self.lake)

    def _expressions(self, columns: Sequence[str]) -> dict[str, Expression]:
        schema, derived = self.view.source.schema, self.definition.derived
        for name in columns:
            if name not in schema and name not in derived:
                raise UnknownNameError.of(
                    "column", name, [*schema, *derived], f"view {self.view.name!r}"
                )
        return {n: derived[n] if n in derived else parse(f'"{n}"', schema) for n in columns}
