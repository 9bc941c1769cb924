"""One view at pinned snapshots: its columns from tiles, or row by row from its events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from paimon_features.callbacks import OnProgress, ignore_progress
from paimon_features.definitions import FeatureView
from paimon_features.errors import UnknownNameError
from paimon_features.expressions import Expression, evaluate, parse
from paimon_features.monitoring.merged_tiles import entering, event_columns, events_within, merged
from paimon_features.monitoring.tile_statistics import KeptColumn
from paimon_features.monitoring.time_ranges import TimeRange
from paimon_features.offline.reading.pinning import AsOf, Pinner
from paimon_features.tables import Lake
from paimon_features.tables.generations import GenerationRecord
from paimon_features.transformers.column_statistics import ColumnStatistics


class ViewReader:
    """The events of a view, those that enter its tiles, as columns.

    Columns are those of its source and its derived ones. What is read of tiles and of events is
    what these snapshots hold: the newest ones by default. The snapshot of the tiles is chosen
    first, so that the events are at least as new.
    """

    def __init__(
        self, lake: Lake, view: FeatureView, record: GenerationRecord, as_of: AsOf = None
    ) -> None:
        self.lake, self.definition, self.view = lake, view, view.compiled
        pinner = Pinner(lake, as_of)
        self.tiles = pinner.pin(record.table, record.incarnation)
        self.events = pinner.pin(self.view.source.table)

    def kept(self, columns: Sequence[str]) -> list[KeptColumn]:
        """What the tiles tell of these columns.

        Raises
        ------
        UnknownNameError
            For a column that neither the source has nor the view derives.
        """
        self._expressions(columns)
        return [KeptColumn.of(self.view, column) for column in columns]

    def statistics(
        self, columns: Sequence[str], within: TimeRange, progress: OnProgress = ignore_progress
    ) -> list[ColumnStatistics]:
        """The statistics of columns over a range, from tiles (and events where it cuts one)."""
        kept = self.kept(columns)
        partials = {p.name: p for column in kept for p in column.partials}
        found = merged(
            self.lake,
            self.view,
            list(partials.values()),
            within,
            self.tiles,
            self.events,
            progress,
        )
        return [column.statistics(found) for column in kept]

    def rows(
        self, columns: Sequence[str], within: TimeRange, progress: OnProgress = ignore_progress
    ) -> Iterator[pa.Table]:
        """The columns of the events of a range, some at a time, in the order of their files."""
        expressions = self._expressions(columns)
        names = event_columns(self.view, expressions.values())
        total, tables = events_within(self.lake, self.events, within, names)
        done = 0
        for table in tables:
            done += table.num_rows
            times, found = entering(self.view, table, [within])
            arrays = {
                name: evaluate(expression, found, len(times)).to_arrow(expression.type.arrow)
                for name, expression in expressions.items()
            }
            progress(done, total)
            if len(times):
                yield pa.table(arrays)

    def _expressions(self, columns: Sequence[str]) -> dict[str, Expression]:
        schema, derived = self.view.source.schema, self.definition.derived
        for name in columns:
            if name not in schema and name not in derived:
                raise UnknownNameError.of(
                    f"column of view {self.view.name!r}", name, [*schema, *derived]
                )
        return {n: derived[n] if n in derived else parse(f'"{n}"', schema) for n in columns}
